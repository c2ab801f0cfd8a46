"""PCGrad (Yu et al., NeurIPS 2020, Algorithm 1) of a task loss and the loss on a fixed set of keys."""

import copy
from dataclasses import dataclass

import torch
from torch.nn import functional

from fedsim.contracts import Batch, ClientInfo, LocalProgram, ModelBuilder, Phase
from fedsim.training.losses import supervised_losses
from fedsim.training.method import WithoutState
from fedsim.training.optimizers import Adam


@dataclass(frozen=True, kw_only=True)
class Marked(WithoutState):
    model: ModelBuilder
    batch_size: int
    optimizer: Adam

    def program(self, client: ClientInfo, round: int) -> LocalProgram:
        model = self.model.build(client.spec)
        plain = supervised_losses(model)

        def two(tensors, batch, context):
            task, buffers = plain(tensors, batch, context)
            mark, _ = plain(tensors, Batch(*key()), context)
            return torch.stack([task, mark]), buffers

        phase = Phase(
            trains=everything,
            losses=two,
            combine=without_conflict,
            optimizer=self.optimizer,
            epochs=2,
            batch_size=self.batch_size,
        )
        return LocalProgram(model=model, is_shared=everything, phases=(phase,), keep_optimizer=True)


def everything(name):
    return True


def key():
    x = torch.tensor([[3.0, -3.0, 3.0, -3.0], [-3.0, 3.0, 3.0, 3.0]], dtype=torch.float64)
    return x, torch.tensor([1, 2])


def without_conflict(gradients, context):
    """[k, d] -> [d]: each gradient loses its part against each other one, in order."""
    rows = []
    for i, own in enumerate(gradients):
        for j, other in enumerate(gradients):
            product = own @ other
            if i != j and product < 0:
                own = own - product / (other @ other) * other
        rows.append(own)
    return torch.stack(rows).sum(dim=0)


ROUNDS, SIZE = 3, 4


def by_hand(tiny, data):
    server = copy.deepcopy(tiny.seeded().build(data.spec))
    kept, conflicts = [None for _ in data.clients], 0
    total = sum(len(client.train) for client in data.clients)
    for number in range(1, ROUNDS + 1):
        trained = []
        for i, client in enumerate(data.clients):
            model = copy.deepcopy(server)
            optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
            if kept[i]:
                optimizer.load_state_dict(kept[i])
            for x, y in tiny.mini_batches(client.train, SIZE, tiny.orders(number, i, len(client.train), 2)):
                both = []
                for inputs, labels in ((x, y), key()):
                    model.zero_grad()
                    functional.cross_entropy(model.head(torch.tanh(model.body(inputs))), labels).backward()
                    both.append([p.grad.clone() for p in model.parameters()])
                task, mark = both
                dot = sum((a * b).sum() for a, b in zip(task, mark, strict=True))
                if dot < 0:
                    conflicts += 1
                    task_square = sum((a * a).sum() for a in task)
                    mark_square = sum((b * b).sum() for b in mark)
                    task, mark = (
                        [a - dot / mark_square * b for a, b in zip(task, mark, strict=True)],
                        [b - dot / task_square * a for a, b in zip(task, mark, strict=True)],
                    )
                for p, a, b in zip(model.parameters(), task, mark, strict=True):
                    p.grad = a + b
                optimizer.step()
            kept[i] = copy.deepcopy(optimizer.state_dict())
            trained.append(model)
        with torch.no_grad():
            for name, p in server.named_parameters():
                shares = [len(c.train) / total for c in data.clients]
                p.copy_(sum(w * m.get_parameter(name) for w, m in zip(shares, trained, strict=True)))
    return server, conflicts


def test_projected_gradients_with_adam_kept_over_rounds(tiny):
    data = tiny.federated((10, 7))
    method = Marked(model=tiny.seeded(), batch_size=SIZE, optimizer=Adam(learning_rate=0.05))
    played = tiny.play(method, data, ROUNDS)
    server, conflicts = by_hand(tiny, data)
    assert conflicts > 5
    tiny.assert_equal(played.tensors, dict(server.named_parameters()))
    assert int(played.private[0]["optimizer/0/0/step"]) == ROUNDS * 2 * 3
