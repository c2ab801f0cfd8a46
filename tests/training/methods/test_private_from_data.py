"""A private tensor that starts from the client's own data: a trained logit offset, at first log-priors."""

import copy
from dataclasses import dataclass

import torch
from torch.nn import functional

from fedsim import rng as streams
from fedsim.contracts import ClientInfo, LocalProgram, ModelBuilder, Phase
from fedsim.training.functional import FunctionalModel
from fedsim.training.method import WithoutState
from fedsim.training.optimizers import Sgd


@dataclass(frozen=True, kw_only=True)
class WithOffset(WithoutState):
    model: ModelBuilder
    batch_size: int
    optimizer: Sgd

    def init(self, client: ClientInfo, rng: torch.Generator):
        counts = torch.bincount(client.data.train.labels(), minlength=client.spec.classes) + 1.0
        jitter = torch.rand(client.spec.classes, generator=rng, dtype=torch.float64)
        return {"offset": (counts / counts.sum()).double().log() + 0.1 * jitter}

    def program(self, client: ClientInfo, round: int) -> LocalProgram:
        model = self.model.build(client.spec)
        call = FunctionalModel(model)

        def losses(tensors, batch, context):
            logits, buffers = call(tensors, batch, context.noise)
            shifted = logits + tensors["offset"]
            return functional.cross_entropy(shifted, batch.y).unsqueeze(0), buffers

        phase = Phase(
            trains=lambda name: True,
            losses=losses,
            optimizer=self.optimizer,
            epochs=1,
            batch_size=self.batch_size,
        )
        return LocalProgram(model=model, is_shared=lambda name: True, phases=(phase,))


ROUNDS, SIZE = 3, 4


def by_hand(tiny, data):
    server = copy.deepcopy(tiny.seeded().build(data.spec))
    total = sum(len(client.train) for client in data.clients)
    offsets = []
    for i, client in enumerate(data.clients):
        histogram = [1.0 + sum(1 for y in client.train.y.tolist() if y == k) for k in range(3)]
        jitter = torch.rand(3, generator=streams.stream(tiny.SEED, "init", 0, i), dtype=torch.float64)
        prior = torch.tensor([h / sum(histogram) for h in histogram])
        offsets.append((prior.double().log() + 0.1 * jitter).requires_grad_())
    for number in range(1, ROUNDS + 1):
        models = []
        for i, client in enumerate(data.clients):
            model = copy.deepcopy(server)
            optimizer = torch.optim.SGD([*model.parameters(), offsets[i]], lr=0.1, momentum=0.9)
            for x, y in tiny.mini_batches(client.train, SIZE, tiny.orders(number, i, len(client.train), 1)):
                optimizer.zero_grad()
                logits = model.head(torch.tanh(model.body(x))) + offsets[i]
                functional.cross_entropy(logits, y).backward()
                optimizer.step()
            models.append(model)
        with torch.no_grad():
            for name, p in server.named_parameters():
                shares = [len(c.train) / total for c in data.clients]
                p.copy_(sum(w * m.get_parameter(name) for w, m in zip(shares, models, strict=True)))
    return server, offsets


def test_offsets_start_from_the_data_and_are_trained(tiny):
    data = tiny.federated((10, 7))
    optimizer = Sgd(learning_rate=0.1, momentum=0.9)
    played = tiny.play(WithOffset(model=tiny.seeded(), batch_size=SIZE, optimizer=optimizer), data, ROUNDS)
    server, offsets = by_hand(tiny, data)
    tiny.assert_equal(played.tensors, dict(server.named_parameters()))
    for partition, offset in enumerate(offsets):
        tiny.assert_equal(played.private[partition], {"offset": offset})
