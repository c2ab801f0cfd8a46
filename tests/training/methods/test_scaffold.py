"""SCAFFOLD (Karimireddy et al., ICML 2020, Algorithm 1, option II): control variates."""

import copy
from dataclasses import dataclass

import torch
from torch.nn import functional

from fedsim.contracts import ClientInfo, LocalProgram, ModelBuilder, Phase
from fedsim.params import Layout
from fedsim.training.functional import model_tensors
from fedsim.training.losses import supervised_losses
from fedsim.training.optimizers import Sgd

OWN, COMMON, CHANGE = "scaffold/own", "scaffold/common", "scaffold/change"


@dataclass(frozen=True, kw_only=True)
class Scaffold:
    model: ModelBuilder
    batch_size: int
    learning_rate: float

    def init(self, client, rng):
        named = model_tensors(self.model.build(client.spec))
        layout = Layout.of(named)
        return {OWN: torch.zeros(layout.size, dtype=layout.dtype)}

    def program(self, client: ClientInfo, round: int) -> LocalProgram:
        model = self.model.build(client.spec)
        phase = Phase(
            trains=lambda name: name != OWN,
            losses=supervised_losses(model),
            optimizer=Sgd(learning_rate=self.learning_rate),
            transform=corrected,
            epochs=2,
            batch_size=self.batch_size,
        )
        return LocalProgram(model=model, is_shared=lambda name: True, phases=(phase,))

    def finish(self, before, after, private, downlink, steps):
        layout = Layout.of(before)
        moved = layout.flatten(before) - layout.flatten(after)
        change = moved / (steps * self.learning_rate) - downlink.get(COMMON, 0)
        return {CHANGE: change}, {OWN: private[OWN] + change}


def corrected(gradient, context):
    return gradient - context.private[OWN] + context.downlink.get(COMMON, 0)


def scaffold_rule():
    common = 0

    def rule(vector, updates):
        nonlocal common
        common = common + torch.stack([u.uplink[CHANGE] for u in updates]).mean(dim=0)
        return vector + torch.stack([u.update for u in updates]).mean(dim=0), {COMMON: common}

    return rule


ROUNDS, SIZE, RATE = 4, 4, 0.1


def by_hand(tiny, data):
    server = copy.deepcopy(tiny.seeded().build(data.spec))
    common = [torch.zeros_like(p) for p in server.parameters()]
    own = [[torch.zeros_like(p) for p in server.parameters()] for _ in data.clients]
    for number in range(1, ROUNDS + 1):
        moves, changes = [], []
        for i, client in enumerate(data.clients):
            model, steps = copy.deepcopy(server), 0
            for x, y in tiny.mini_batches(client.train, SIZE, tiny.orders(number, i, len(client.train), 2)):
                model.zero_grad()
                functional.cross_entropy(model.head(torch.tanh(model.body(x))), y).backward()
                steps += 1
                with torch.no_grad():
                    for p, c_i, c in zip(model.parameters(), own[i], common, strict=True):
                        p -= RATE * (p.grad - c_i + c)
            with torch.no_grad():
                pairs = list(zip(server.parameters(), model.parameters(), strict=True))
                fresh = [
                    c_i - c + (x - y) / (steps * RATE)
                    for (x, y), c_i, c in zip(pairs, own[i], common, strict=True)
                ]
                moves.append([y - x for x, y in pairs])
            changes.append([a - b for a, b in zip(fresh, own[i], strict=True)])
            own[i] = fresh
        with torch.no_grad():
            for k, p in enumerate(server.parameters()):
                p += sum(move[k] for move in moves) / len(moves)
                common[k] = common[k] + sum(change[k] for change in changes) / len(changes)
    return server, own


def test_control_variates_equal_the_hand_written_loop(tiny):
    data = tiny.federated((10, 7))
    method = Scaffold(model=tiny.seeded(), batch_size=SIZE, learning_rate=RATE)
    played = tiny.play(method, data, ROUNDS, scaffold_rule())
    server, own = by_hand(tiny, data)
    tiny.assert_equal(played.tensors, dict(server.named_parameters()))
    for partition, variates in enumerate(own):
        expected = torch.cat([v.reshape(-1) for v in variates])
        tiny.assert_equal(played.private[partition], {OWN: expected})
