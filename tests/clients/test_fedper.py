import copy

import pytest

from clients.fedper import FedPer
from fedsim.contracts import ClientInfo
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
            batches = tiny.mini_batches(client.train, SIZE, tiny.orders(number, i, len(client.train), 2))
            hand.descend(model, model.parameters(), batches, RATE)
        hand.average(server, models, data)
    return server, heads


def method_of(tiny, **options):
    return FedPer(
        model=tiny.seeded(), optimizer=Sgd(learning_rate=RATE), epochs=2, batch_size=SIZE, **options
    )


def test_a_private_head_equals_the_hand_written_loop(tiny, hand):
    data = tiny.federated((10, 7))
    played = tiny.play(method_of(tiny), data, ROUNDS)
    server, heads = by_hand(tiny, hand, data)
    tiny.assert_equal(played.tensors, {f"body.{n}": v for n, v in server.body.named_parameters()})
    for partition, head in enumerate(heads):
        tiny.assert_equal(played.private[partition], {f"head.{n}": v for n, v in head.named_parameters()})


def test_a_part_may_be_one_tensor_and_never_takes_its_namesakes(tiny):
    client = ClientInfo(0, tiny.federated((10,)).clients[0])
    program = method_of(tiny, private=("head.bias",)).program(client, 1)
    shared = [name for name in program.model.state_dict() if program.is_shared(name)]
    assert shared == ["body.weight", "body.bias", "head.weight"]
    with pytest.raises(ConfigError, match=r"no part 'hea'; it has body, head"):
        method_of(tiny, private=("hea",)).program(client, 1)


@pytest.mark.parametrize(
    ("private", "message"),
    [
        ((), 'private must name a part of the model, such as "head", found'),
        (("head", "tail"), r"client.private: the model has no part 'tail'; it has body, head"),
        (("head", "body"), r"client.private = \['head', 'body'\] holds the whole model"),
    ],
)
def test_parts_that_make_no_sense_are_refused(tiny, private, message):
    client = ClientInfo(0, tiny.federated((10,)).clients[0])
    with pytest.raises(ConfigError, match=message):
        method_of(tiny, private=private).program(client, 1)


def test_clients_with_different_inputs_keep_their_first_layer(tiny):
    data = tiny.federated((10, 7), features=(4, 6))
    played = tiny.play(method_of(tiny, private=("body",)), data, ROUNDS)
    assert set(played.tensors) == {"head.weight", "head.bias"}
    assert [played.private[i]["body.weight"].shape[1] for i in (0, 1)] == [4, 6]
