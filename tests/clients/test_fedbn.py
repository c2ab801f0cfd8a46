import copy

import pytest

from clients.fedbn import FedBn
from fedsim.contracts import ClientInfo
from fedsim.errors import ConfigError
from fedsim.training.optimizers import Sgd

ROUNDS, SIZE, RATE = 3, 4, 0.1


def by_hand(tiny, hand, data):
    server = copy.deepcopy(tiny.seeded(norm=True).build(data.spec))
    norms = [copy.deepcopy(server.norm) for _ in data.clients]
    for number in range(1, ROUNDS + 1):
        models = [copy.deepcopy(server) for _ in data.clients]
        for i, (model, client) in enumerate(zip(models, data.clients, strict=True)):
            model.norm = norms[i]
            batches = tiny.mini_batches(client.train, SIZE, tiny.orders(number, i, len(client.train), 2))
            hand.descend(model, model.parameters(), batches, RATE)
        hand.average(server, models, data)
    return server, norms


def method_of(tiny, **options):
    model = tiny.seeded(norm=True)
    options = {"model": model, "epochs": 2, "batch_size": SIZE} | options
    return FedBn(optimizer=Sgd(learning_rate=RATE), **options)


def test_private_norms_equal_the_hand_written_loop(tiny, hand):
    data = tiny.federated((12, 8))
    played = tiny.play(method_of(tiny), data, ROUNDS)
    server, norms = by_hand(tiny, hand, data)
    kept = {n: v for n, v in server.state_dict().items() if not n.startswith("norm.")}
    tiny.assert_equal(played.tensors, kept)
    for partition, norm in enumerate(norms):
        expected = {f"norm.{name}": value for name, value in norm.state_dict().items()}
        tiny.assert_equal(played.private[partition], expected)


def test_further_parts_may_be_private_too(tiny):
    played = tiny.play(method_of(tiny, private=("head",)), tiny.federated((12, 8)), 1)
    assert set(played.tensors) == {"body.weight", "body.bias"}


def test_a_model_without_batch_norm_is_refused(tiny):
    client = ClientInfo(0, tiny.federated((10,)).clients[0])
    with pytest.raises(ConfigError, match=r"TwoLayer has none: choose a model with them"):
        method_of(tiny, model=tiny.seeded()).program(client, 1)
