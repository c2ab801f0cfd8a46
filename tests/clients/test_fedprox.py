import copy
import dataclasses

import pytest

from clients.fedprox import FedProx
from clients.supervised import Supervised
from fedsim.errors import ConfigError
from fedsim.training.optimizers import Sgd

ROUNDS, SIZE, RATE = 3, 4, 0.1


def by_hand(tiny, hand, data, mu):
    server = copy.deepcopy(tiny.seeded().build(data.spec))
    for number in range(1, ROUNDS + 1):
        models = [copy.deepcopy(server) for _ in data.clients]
        for i, (model, client) in enumerate(zip(models, data.clients, strict=True)):
            batches = tiny.mini_batches(client.train, SIZE, tiny.orders(number, i, len(client.train), 2))
            hand.descend(model, model.parameters(), batches, RATE, 0.5, pull=mu, towards=server)
        hand.average(server, models, data)
    return dict(server.named_parameters())


def method_of(tiny, mu):
    optimizer = Sgd(learning_rate=RATE, momentum=0.5)
    return FedProx(model=tiny.seeded(), mu=mu, optimizer=optimizer, epochs=2, batch_size=SIZE)


@pytest.mark.parametrize("mu", [0.7, 5.0])
def test_the_proximal_term_equals_the_hand_written_loop(tiny, hand, mu):
    data = tiny.federated((10, 7))
    played = tiny.play(method_of(tiny, mu), data, ROUNDS)
    tiny.assert_equal(played.tensors, by_hand(tiny, hand, data, mu))


def test_without_the_term_it_is_plain_training(tiny):
    data = tiny.federated((10, 7))
    method = method_of(tiny, 0.0)
    names = {field.name for field in dataclasses.fields(Supervised)}
    plain = Supervised(**{name: getattr(method, name) for name in names})
    tiny.assert_equal(tiny.play(method, data, ROUNDS).tensors, tiny.play(plain, data, ROUNDS).tensors, rtol=0)


def test_statistics_are_not_pulled(tiny):
    data = tiny.federated((12, 8))
    norm = dataclasses.replace(method_of(tiny, 3.0), model=tiny.seeded(norm=True))
    played = tiny.play(norm, data, 1)
    free = tiny.play(dataclasses.replace(norm, mu=0.0), data, 1)
    assert not played.tensors["body.weight"].equal(free.tensors["body.weight"])
    assert played.tensors["norm.num_batches_tracked"] == free.tensors["norm.num_batches_tracked"]


@pytest.mark.parametrize("mu", [-0.1, float("inf"), float("nan")])
def test_a_bad_weight_is_refused(tiny, mu):
    with pytest.raises(ConfigError, match=f"mu must be at least 0 and finite, found {mu}"):
        method_of(tiny, mu)
