"""FedRep (Collins et al., ICML 2021): a private head is trained first, then the shared body."""

import copy
from dataclasses import dataclass

import torch
from torch.nn import functional

from fedsim.contracts import ClientInfo, LocalProgram, ModelBuilder, Phase
from fedsim.training.losses import supervised_losses
from fedsim.training.method import WithoutState
from fedsim.training.optimizers import Sgd


@dataclass(frozen=True, kw_only=True)
class FedRep(WithoutState):
    model: ModelBuilder
    head_epochs: int
    body_epochs: int
    batch_size: int
    optimizer: Sgd

    def program(self, client: ClientInfo, round: int) -> LocalProgram:
        model = self.model.build(client.spec)
        common = {"losses": supervised_losses(model), "batch_size": self.batch_size}
        head = Phase(trains=is_head, epochs=self.head_epochs, optimizer=self.optimizer, **common)
        body = Phase(trains=is_body, epochs=self.body_epochs, optimizer=self.optimizer, **common)
        return LocalProgram(model=model, is_shared=is_body, phases=(head, body))


def is_head(name: str) -> bool:
    return name.startswith("head.")


def is_body(name: str) -> bool:
    return not is_head(name)


ROUNDS, SIZE = 3, 4


def by_hand(tiny, data):
    template = tiny.seeded().build(data.spec)
    body, heads = copy.deepcopy(template.body), [copy.deepcopy(template.head) for _ in data.clients]
    for number in range(1, ROUNDS + 1):
        bodies = []
        for partition, client in enumerate(data.clients):
            model = copy.deepcopy(template)
            model.body, model.head = copy.deepcopy(body), heads[partition]
            for phase, (part, epochs) in enumerate(((model.head, 2), (model.body, 1))):
                optimizer = torch.optim.SGD(part.parameters(), lr=0.1, momentum=0.5)
                permutations = tiny.orders(number, partition, len(client.train), epochs, phase)
                for x, y in tiny.mini_batches(client.train, SIZE, permutations):
                    model.zero_grad()
                    functional.cross_entropy(model.head(torch.tanh(model.body(x))), y).backward()
                    optimizer.step()
            bodies.append(model.body)
        weights = [len(client.train) / sum(len(c.train) for c in data.clients) for client in data.clients]
        with torch.no_grad():
            for name, value in body.named_parameters():
                parts = [w * b.get_parameter(name) for w, b in zip(weights, bodies, strict=True)]
                value.copy_(torch.stack(parts).sum(dim=0))
    return body, heads


def test_head_then_body_equals_the_hand_written_loop(tiny):
    data = tiny.federated((10, 7))
    method = FedRep(
        model=tiny.seeded(),
        head_epochs=2,
        body_epochs=1,
        batch_size=SIZE,
        optimizer=Sgd(learning_rate=0.1, momentum=0.5),
    )
    played = tiny.play(method, data, ROUNDS)
    body, heads = by_hand(tiny, data)
    tiny.assert_equal(played.tensors, {f"body.{n}": p for n, p in body.named_parameters()})
    for partition, head in enumerate(heads):
        expected = {f"head.{n}": p for n, p in head.named_parameters()}
        tiny.assert_equal(played.private[partition], expected)
    assert played.updates[0][0].steps == 2 * 3 + 3
