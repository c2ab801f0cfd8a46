import dataclasses

import pytest
import torch
from torch.nn import functional

from clients.apfl import Apfl
from fedsim.contracts import ClientInfo
from fedsim.errors import ConfigError
from fedsim.training.optimizers import Sgd
from fedsim.training.schedules import StepDecay

ROUNDS, SIZE, RATE, MIXING = 3, 4, 0.1, 2.0


def gradient(values, x, y):
    """Of the cross-entropy of a body and a head given as four tensors."""
    weight, bias, head_weight, head_bias = (v.clone().requires_grad_() for v in values)
    logits = torch.tanh(x @ weight.T + bias) @ head_weight.T + head_bias
    return torch.autograd.grad(functional.cross_entropy(logits, y), (weight, bias, head_weight, head_bias))


def by_hand(tiny, data, mixing):
    """Gradients of v and alpha from that of the mixture: alpha g and <v - w, g>."""
    template = tiny.seeded().build(data.spec)
    server = [p.detach().clone() for p in template.parameters()]
    own = [[p.clone() for p in server] for _ in data.clients]
    alphas = [0.5 for _ in data.clients]
    total = sum(len(client.train) for client in data.clients)
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
                alphas[i] = min(1.0, max(0.0, alphas[i] - mixing * slope))
            own[i] = v
            sums = [s + len(client.train) / total * a for s, a in zip(sums, w, strict=True)]
        server = sums
    return server, own, alphas


def method_of(tiny, **options):
    options = {"alpha_rate": MIXING, "batch_size": SIZE} | options
    return Apfl(model=tiny.seeded(), optimizer=Sgd(learning_rate=RATE), **options)


@pytest.mark.parametrize("mixing", [MIXING, 0.0])
def test_mixture_and_mixing_equal_the_hand_written_loop(tiny, mixing):
    data = tiny.federated((10, 7))
    played = tiny.play(method_of(tiny, alpha_rate=mixing), data, ROUNDS)
    server, own, alphas = by_hand(tiny, data, mixing)
    names = list(played.tensors)
    tiny.assert_equal(played.tensors, dict(zip(names, server, strict=True)))
    for partition in range(2):
        expected = {f"own/{name}": v for name, v in zip(names, own[partition], strict=True)}
        expected["alpha"] = torch.tensor(alphas[partition], dtype=torch.float64)
        tiny.assert_equal(played.private[partition], expected)
    assert (len(set(alphas)) == 2) == (mixing > 0)


def test_statistics_of_the_mixture_are_the_client_s_own(tiny):
    method = dataclasses.replace(method_of(tiny), model=tiny.seeded(norm=True))
    played = tiny.play(method, tiny.federated((12, 8)), 1)
    assert played.private[1]["own/norm.num_batches_tracked"] == 2
    assert played.tensors["norm.num_batches_tracked"] == 3
    own = played.private[0]["own/norm.running_mean"]
    assert not torch.equal(own, played.tensors["norm.running_mean"])


def test_the_schedule_scales_both_rates(tiny):
    data = tiny.federated((10,))
    method = method_of(tiny, schedule=StepDecay(every=1, decay=0.5))
    (phase,) = method.program(ClientInfo(0, data.clients[0]), 2).phases
    assert phase.optimizer.learning_rate == RATE / 2
    assert phase.groups[0][1].learning_rate == MIXING / 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"alpha": 1.5}, r"alpha must be between 0 and 1, found 1\.5"),
        ({"alpha": float("nan")}, "alpha must be between 0 and 1, found nan"),
        ({"alpha_rate": -1.0}, r"alpha_rate must be at least 0 and finite, found -1\.0"),
    ],
)
def test_values_out_of_range_are_refused(tiny, options, message):
    with pytest.raises(ConfigError, match=message):
        method_of(tiny, **options)
