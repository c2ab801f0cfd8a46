"""APFL (Deng et al., 2020, Algorithm 1): a mixture of a private and the shared model, learnt mixing."""

from dataclasses import dataclass

import torch
from torch.nn import functional

from fedsim.contracts import ClientInfo, LocalProgram, ModelBuilder, Phase
from fedsim.training.functional import model_tensors
from fedsim.training.losses import supervised_losses
from fedsim.training.method import WithoutState
from fedsim.training.optimizers import Sgd


@dataclass(frozen=True, kw_only=True)
class Apfl(WithoutState):
    model: ModelBuilder
    alpha: float
    batch_size: int
    optimizer: Sgd
    mixing: Sgd

    def init(self, client, rng):
        named = model_tensors(self.model.build(client.spec))
        own = {"own/" + name: value for name, value in named.items()}
        return own | {"alpha": torch.tensor(self.alpha, dtype=torch.float64)}

    def program(self, client: ClientInfo, round: int) -> LocalProgram:
        model = self.model.build(client.spec)
        plain = supervised_losses(model)

        def both(tensors, batch, context):
            shared, _ = plain(tensors, batch, context)
            mixed, _ = plain(mixture(tensors), batch, context)  # the shared part counts as constant
            return torch.stack([shared, mixed]), {}

        phase = Phase(
            trains=lambda name: True,
            losses=both,
            optimizer=self.optimizer,
            groups=((lambda name: name == "alpha", self.mixing),),
            project=lambda tensors, context: {"alpha": tensors["alpha"].clamp(0, 1)},
            epochs=1,
            batch_size=self.batch_size,
        )
        return LocalProgram(model=model, is_shared=lambda name: True, phases=(phase,), used=mixture)


def mixture(tensors):
    alpha = tensors["alpha"]
    return {
        name.removeprefix("own/"): alpha * own + (1 - alpha) * tensors[name.removeprefix("own/")].detach()
        for name, own in tensors.items()
        if name.startswith("own/")
    }


ROUNDS, SIZE, RATE, MIXING = 3, 4, 0.1, 2.0


def by_hand(tiny, data):
    """Gradients of v and alpha from that of the mixture: alpha * g and <v - w, g>."""
    template = tiny.seeded().build(data.spec)
    server = [p.detach().clone() for p in template.parameters()]
    own = [[p.clone() for p in server] for _ in data.clients]
    alphas = [0.5 for _ in data.clients]
    total = sum(len(client.train) for client in data.clients)

    def gradient(values, x, y):
        leaves = [v.clone().requires_grad_() for v in values]
        weight, bias, head_weight, head_bias = leaves
        logits = torch.tanh(x @ weight.T + bias) @ head_weight.T + head_bias
        functional.cross_entropy(logits, y).backward()
        return [leaf.grad for leaf in leaves]

    for number in range(1, ROUNDS + 1):
        sums = [torch.zeros_like(p) for p in server]
        for i, client in enumerate(data.clients):
            w, v = [p.clone() for p in server], own[i]
            for x, y in tiny.mini_batches(client.train, SIZE, tiny.orders(number, i, len(client.train), 1)):
                mixed = [alphas[i] * b + (1 - alphas[i]) * a for a, b in zip(w, v, strict=True)]
                shared_g, mixed_g = gradient(w, x, y), gradient(mixed, x, y)
                slope = sum(((b - a) * g).sum().item() for a, b, g in zip(w, v, mixed_g, strict=True))
                v = [b - RATE * alphas[i] * g for b, g in zip(v, mixed_g, strict=True)]
                w = [a - RATE * g for a, g in zip(w, shared_g, strict=True)]
                alphas[i] = min(1.0, max(0.0, alphas[i] - MIXING * slope))
            own[i] = v
            sums = [s + len(client.train) / total * a for s, a in zip(sums, w, strict=True)]
        server = sums
    return server, own, alphas


def test_mixture_and_mixing_equal_the_hand_written_loop(tiny):
    data = tiny.federated((10, 7))
    method = Apfl(
        model=tiny.seeded(),
        alpha=0.5,
        batch_size=SIZE,
        optimizer=Sgd(learning_rate=RATE),
        mixing=Sgd(learning_rate=MIXING),
    )
    played = tiny.play(method, data, ROUNDS)
    server, own, alphas = by_hand(tiny, data)
    names = list(played.tensors)
    tiny.assert_equal(played.tensors, dict(zip(names, server, strict=True)))
    for partition in range(2):
        expected = {f"own/{name}": v for name, v in zip(names, own[partition], strict=True)}
        expected["alpha"] = torch.tensor(alphas[partition], dtype=torch.float64)
        tiny.assert_equal(played.private[partition], expected)
    assert len(set(alphas)) == 2
