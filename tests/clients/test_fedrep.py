import copy

import pytest

from clients.fedrep import FedRep
from fedsim.errors import ConfigError
from fedsim.training.optimizers import Sgd

ROUNDS, SIZE, RATE = 3, 4, 0.1


def by_hand(tiny, hand, data):
    server = copy.deepcopy(tiny.seeded().build(data.spec))
    heads = [copy.deepcopy(server.head) for _ in data.clients]
    for number in range(1, ROUNDS + 1):
        models = [copy.deepcopy(server) for _ in data.clients]
        for i, (model, client) in enumerate(zip(models, data.clients, strict=True)):
            model.head = heads[i]
            for phase, (part, epochs) in enumerate(((model.head, 3), (model.body, 2))):
                order = tiny.orders(number, i, len(client.train), epochs, phase)
                batches = tiny.mini_batches(client.train, SIZE, order)
                hand.descend(model, part.parameters(), batches, RATE, 0.5)
        hand.average(server, models, data)
    return server, heads


def method_of(tiny, **options):
    optimizer = Sgd(learning_rate=RATE, momentum=0.5)
    options = {"head_epochs": 3, "epochs": 2, "batch_size": SIZE} | options
    return FedRep(model=tiny.seeded(), optimizer=optimizer, **options)


def test_head_then_body_equals_the_hand_written_loop(tiny, hand):
    data = tiny.federated((10, 7))
    played = tiny.play(method_of(tiny), data, ROUNDS)
    server, heads = by_hand(tiny, hand, data)
    tiny.assert_equal(played.tensors, {f"body.{n}": v for n, v in server.body.named_parameters()})
    for partition, head in enumerate(heads):
        tiny.assert_equal(played.private[partition], {f"head.{n}": v for n, v in head.named_parameters()})


def test_an_epoch_count_out_of_range_is_refused(tiny):
    with pytest.raises(ConfigError, match="head_epochs must be at least 1, found 0"):
        method_of(tiny, head_epochs=0)
    with pytest.raises(ConfigError, match="private must name a part"):
        method_of(tiny, private=())
