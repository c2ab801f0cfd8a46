import copy

import torch

from clients.local import Local
from fedsim.training.optimizers import Sgd

ROUNDS, SIZE, RATE = 3, 4, 0.1


def method_of(tiny, **options):
    optimizer = Sgd(learning_rate=RATE, momentum=0.5)
    return Local(model=tiny.seeded(norm=True), optimizer=optimizer, epochs=2, batch_size=SIZE, **options)


def test_every_client_trains_alone_as_in_the_hand_written_loop(tiny, hand):
    data = tiny.federated((12, 8))
    played = tiny.play(method_of(tiny), data, ROUNDS)
    assert played.tensors == {}
    for i, client in enumerate(data.clients):
        model = copy.deepcopy(tiny.seeded(norm=True).build(data.spec))
        for number in range(1, ROUNDS + 1):
            order = tiny.orders(number, i, len(client.train), 2)
            batches = tiny.mini_batches(client.train, SIZE, order)
            hand.descend(model, model.parameters(), batches, RATE, 0.5)
        tiny.assert_equal(played.private[i], model.state_dict())


def test_updates_are_empty_and_clients_may_differ_in_everything(tiny):
    data = tiny.federated((10, 7), features=(4, 6))
    played = tiny.play(method_of(tiny), data, 2)
    assert all(update.update.shape == (0,) for updates in played.updates for update in updates)
    assert [played.private[i]["body.weight"].shape for i in (0, 1)] == [(5, 4), (5, 6)]


def test_kept_optimizer_state_makes_it_one_long_run(tiny):
    data = tiny.federated((4,))
    played = tiny.play(method_of(tiny, keep_optimizer=True), data, ROUNDS)
    model = copy.deepcopy(tiny.seeded(norm=True).build(data.spec))
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=0.5)
    x, y = data.clients[0].train.x, data.clients[0].train.y
    for _ in range(2 * ROUNDS):
        optimizer.zero_grad()
        hidden = torch.tanh(model.norm(model.body(x)))
        torch.nn.functional.cross_entropy(model.head(hidden), y).backward()
        optimizer.step()
    found = {n: v for n, v in played.private[0].items() if not n.startswith("optimizer/")}
    tiny.assert_equal(found, model.state_dict())
