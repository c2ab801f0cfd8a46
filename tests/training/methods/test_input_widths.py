"""Two clients whose inputs differ in width: the first layer is private, the rest is shared."""

import copy
from dataclasses import dataclass

import torch
from torch.nn import functional

from fedsim.contracts import ClientInfo, Failure, LocalProgram, ModelBuilder, Phase
from fedsim.engine.protocols import Task, WorkerPlace
from fedsim.federation import TrainOrder
from fedsim.params import Layout
from fedsim.training.handler import TrainingSetup
from fedsim.training.initial import initial_model
from fedsim.training.losses import supervised_losses
from fedsim.training.method import WithoutState
from fedsim.training.optimizers import Sgd


@dataclass(frozen=True, kw_only=True)
class OwnInput(WithoutState):
    model: ModelBuilder
    batch_size: int
    optimizer: Sgd
    shared: tuple[str, ...] = ("head.",)

    def program(self, client: ClientInfo, round: int) -> LocalProgram:
        model = self.model.build(client.spec)
        phase = Phase(
            trains=lambda name: True,
            losses=supervised_losses(model),
            optimizer=self.optimizer,
            epochs=2,
            batch_size=self.batch_size,
        )
        return LocalProgram(model=model, is_shared=lambda name: name.startswith(self.shared), phases=(phase,))


ROUNDS, SIZE = 3, 4


def by_hand(tiny, data):
    bodies = [copy.deepcopy(tiny.seeded().build(client.spec)).body for client in data.clients]
    head = copy.deepcopy(tiny.seeded().build(data.clients[0].spec)).head
    total = sum(len(client.train) for client in data.clients)
    for number in range(1, ROUNDS + 1):
        heads = []
        for i, client in enumerate(data.clients):
            own = copy.deepcopy(head)
            optimizer = torch.optim.SGD([*bodies[i].parameters(), *own.parameters()], lr=0.1)
            for x, y in tiny.mini_batches(client.train, SIZE, tiny.orders(number, i, len(client.train), 2)):
                optimizer.zero_grad()
                functional.cross_entropy(own(torch.tanh(bodies[i](x))), y).backward()
                optimizer.step()
            heads.append(own)
        with torch.no_grad():
            for name, p in head.named_parameters():
                shares = [len(c.train) / total for c in data.clients]
                p.copy_(sum(w * h.get_parameter(name) for w, h in zip(shares, heads, strict=True)))
    return head, bodies


def method(tiny, **options):
    return OwnInput(model=tiny.seeded(), batch_size=SIZE, optimizer=Sgd(learning_rate=0.1), **options)


def test_clients_of_two_widths_share_their_head(tiny):
    data = tiny.federated((10, 7), features=(4, 6))
    played = tiny.play(method(tiny), data, ROUNDS)
    head, bodies = by_hand(tiny, data)
    tiny.assert_equal(played.tensors, {f"head.{n}": p for n, p in head.named_parameters()})
    for partition, body in enumerate(bodies):
        expected = {f"body.{n}": p for n, p in body.named_parameters()}
        tiny.assert_equal(played.private[partition], expected)


def test_a_shared_tensor_of_two_shapes_is_named(tiny):
    data = tiny.federated((10, 7), features=(4, 6))
    wrong = method(tiny, shared=("head.", "body."))
    tensors = initial_model(wrong, data)
    order = TrainOrder(1, Layout.of(tensors).flatten(tensors), {})
    handler = TrainingSetup(wrong, tiny.SEED, torch.float64)(data, WorkerPlace(3, tiny.CPU))
    first, second = handler.run(order, Task((0, 1), (None, None)))
    assert not isinstance(first, Failure)
    assert isinstance(second, Failure)
    assert second.worker == 3
    assert second.kind == "exception"
    assert "Shared tensor 'body.weight'" in second.message
    assert "(5, 4)" in second.message
    assert "(5, 6)" in second.message
