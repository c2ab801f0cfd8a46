import math

import pytest
import torch

from fedsim import plugins
from strategies.centred_clipping import CentredClipping
from strategies.fedadam import FedAdam
from strategies.fedavg import FedAvg
from strategies.fedavgm import FedAvgM
from strategies.fedyogi import FedYogi
from strategies.krum import Krum

ROUNDS = 5


def play(rule, rounds, cohort_of, server_of, d=6, dtype=torch.float64):
    """The updates of consecutive rounds, and the last state."""
    state, found = rule.init(torch.zeros(d, dtype=dtype)), []
    for number, updates in enumerate(rounds):
        state, decision = rule.step(state, cohort_of(updates, round=number + 1), server_of(d, dtype))
        found.append(decision.update.tolist())
    return found, state


def deltas_of(rounds):
    """FedAvg's mean of each round, by hand; the cohort's examples are 1, 2, ..., n."""
    for updates in rounds:
        rows = updates.double().tolist()
        total = len(rows) * (len(rows) + 1) / 2
        yield [math.fsum((k + 1) * row[j] for k, row in enumerate(rows)) / total for j in range(len(rows[0]))]


@pytest.fixture
def rounds(normal):
    return [normal(4, 6, seed=seed) * 10.0 ** (seed - 3) for seed in range(ROUNDS)]


@pytest.mark.parametrize(("dtype", "rel"), [(torch.float32, 1e-5), (torch.float64, 1e-12)])
@pytest.mark.parametrize("kind", ["adam", "yogi"])
def test_adaptive_steps_follow_algorithm_2(kind, dtype, rel, rounds, cohort_of, server_of):
    eta, beta1, beta2, tau = 0.3, 0.8, 0.95, 1e-2
    rounds = [updates.to(dtype) for updates in rounds]
    rule = {"adam": FedAdam, "yogi": FedYogi}[kind](learning_rate=eta, beta1=beta1, beta2=beta2, tau=tau)
    found, _ = play(rule, rounds, cohort_of, server_of, dtype=dtype)
    m, v = [0.0] * 6, [tau**2] * 6
    for step, delta in zip(found, deltas_of(rounds), strict=True):
        for j, change in enumerate(delta):
            m[j] = beta1 * m[j] + (1 - beta1) * change
            if kind == "adam":
                v[j] = beta2 * v[j] + (1 - beta2) * change**2
            else:
                v[j] -= (1 - beta2) * change**2 * math.copysign(1, v[j] - change**2)
            assert step[j] == pytest.approx(eta * m[j] / (math.sqrt(v[j]) + tau), rel=rel)


@pytest.mark.parametrize("dampened", [False, True])
def test_momentum_follows_its_formula(dampened, rounds, cohort_of, server_of):
    rule = FedAvgM(momentum=0.7, learning_rate=0.5, dampened=dampened)
    found, _ = play(rule, rounds, cohort_of, server_of)
    velocity = [0.0] * 6
    for step, delta in zip(found, deltas_of(rounds), strict=True):
        velocity = [
            0.7 * v + (0.3 if dampened else 1.0) * change for v, change in zip(velocity, delta, strict=True)
        ]
        assert step == pytest.approx([0.5 * v for v in velocity], rel=1e-12)


def test_without_momentum_it_is_the_inner_rule(rounds, cohort_of, server_of):
    plain, _ = play(FedAvg(), rounds, cohort_of, server_of)
    found, _ = play(FedAvgM(momentum=0.0), rounds, cohort_of, server_of)
    assert found == plain


@pytest.mark.parametrize("kind", ["fedavgm", "fedadam", "fedyogi"])
def test_any_rule_fits_inside_and_its_state_is_kept_apart(kind, normal, cohort_of, server_of):
    table = {"kind": kind, "rule": {"kind": "centred_clipping", "radius": 0.5}}
    outer = plugins.build(
        "strategies", table if kind == "fedavgm" else table | {"learning_rate": 0.1}, "strategy"
    )
    rounds = [normal(5, 6, seed=seed) for seed in range(3)]
    _, state = play(outer, rounds, cohort_of, server_of)
    _, inner = play(CentredClipping(radius=0.5), rounds, cohort_of, server_of)
    assert torch.equal(state["rule/centre"], inner["centre"])


def test_weights_are_the_inner_rule_s(normal, cohort_of, server_of):
    updates, rule = normal(7, 6), FedAdam(learning_rate=1.0, rule=Krum(byzantine=1))
    _, decision = rule.step(rule.init(updates[0]), cohort_of(updates), server_of(6))
    _, inner = Krum(byzantine=1).step({}, cohort_of(updates), server_of(6))
    assert torch.equal(decision.weights, inner.weights)


@pytest.mark.parametrize("rule", [FedAvgM(), FedAdam(learning_rate=1.0), FedYogi(learning_rate=1.0)])
def test_batch_norm_statistics_are_averaged_and_never_pushed_below_zero(rule, cohort_of, server_of, layout):
    variance, state = torch.full((4,), 2.0), rule.init(torch.zeros(layout.size))
    for _ in range(20):  # every client halves its variances in every round
        updates = torch.zeros(3, layout.size)
        updates[:, 12:16] = -variance / 2
        state, decision = rule.step(state, cohort_of(updates), server_of(layout.size, torch.float32))
        variance = variance + decision.update[12:16]
        assert bool((variance > 0).all())
    assert variance.tolist() == pytest.approx([2.0 * 0.5**20] * 4)


def test_squares_stay_positive_under_yogi(normal, cohort_of, server_of):
    rule = FedYogi(learning_rate=0.1, beta2=0.0)
    _, state = play(rule, [normal(3, 6, seed=s) * 10.0 ** (3 - s) for s in range(8)], cohort_of, server_of)
    assert bool((state["square"] >= 0).all())
