"""Attacks on updates, each against its paper's formula written out by hand."""

import itertools
import math

import pytest
import torch

from attacks.alie import Alie, largest_unnoticed_z
from attacks.ipm import Ipm
from attacks.min_max import MinMax, direction_of, largest_gamma
from attacks.sign_flip import SignFlip
from fedsim.errors import ConfigError, RoundError

MEMBERS = (1, 4, 5)


def normal(n, d, seed=0, dtype=torch.float64):
    return torch.randn(n, d, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def test_a_flipped_update_is_its_negative_multiple(crafted):
    honest = normal(6, 4)
    found = crafted(SignFlip(scale=3.0), honest, MEMBERS)
    for row in range(6):
        expected = (
            [-3.0 * value for value in honest[row].tolist()] if row in MEMBERS else honest[row].tolist()
        )
        assert found[row].tolist() == pytest.approx(expected, rel=1e-15)


@pytest.mark.parametrize("sees", ["colluders", "everything"])
def test_the_mean_of_a_manipulated_cohort_points_backwards(crafted, sees):
    honest = normal(9, 6) + 1
    epsilon = 1.1 * (9 - 3) / 3
    found = crafted(Ipm(epsilon=epsilon, sees=sees), honest, MEMBERS)
    known = [honest[row].tolist() for row in (MEMBERS if sees == "colluders" else range(9))]
    expected = [-epsilon * sum(column) / len(known) for column in zip(*known, strict=True)]
    for row in MEMBERS:
        assert found[row].tolist() == pytest.approx(expected, rel=1e-12)
    benign = [row for row in range(9) if row not in MEMBERS]
    if sees == "everything":
        assert float(honest.mean(dim=0) @ found.mean(dim=0)) < float(honest.mean(dim=0) @ honest.mean(dim=0))
        same = honest.mean(dim=0).expand(9, -1).clone()
        turned = crafted(Ipm(epsilon=epsilon, sees=sees), same, MEMBERS)
        assert float(turned.mean(dim=0) @ same[0]) < 0
        assert torch.equal(turned[benign], same[benign])


@pytest.mark.parametrize(("n", "m"), [(51, 12), (20, 6), (50, 24), (10, 4), (21, 9)])
def test_z_is_the_quantile_of_the_paper(n, m):
    """Phi by its series, inverted by search: no library of normal distributions."""
    supporters = n // 2 + 1 - m
    share = (n - m - supporters) / (n - m)

    def phi(z):
        term, total = z, z
        for k in range(1, 60):
            term *= -z * z / (2 * k)
            total += term / (2 * k + 1)
        return 0.5 + total / math.sqrt(2 * math.pi)

    z = largest_unnoticed_z(n, m)
    assert phi(z) == pytest.approx(share, abs=1e-12)


def test_the_setting_of_the_paper():
    assert largest_unnoticed_z(51, 12) == pytest.approx(0.36, abs=0.005)


@pytest.mark.parametrize(("n", "m"), [(10, 1), (10, 2), (3, 1)])
def test_too_few_attackers_cannot_leave_the_mean(n, m):
    assert largest_unnoticed_z(n, m) == 0.0


def test_a_majority_has_no_z():
    with pytest.raises(RoundError, match=r"minority of malicious clients, found 6 of 10: set attack\.z"):
        largest_unnoticed_z(10, 6)


@pytest.mark.parametrize("sees", ["colluders", "everything"])
@pytest.mark.parametrize("z", [1.5, "max"])
def test_a_little_is_mean_minus_z_deviations(crafted, sees, z):
    honest = normal(7, 5)
    found = crafted(Alie(z=z, sees=sees), honest, MEMBERS)
    number = largest_unnoticed_z(7, 3) if z == "max" else z
    known = [honest[row].tolist() for row in (MEMBERS if sees == "colluders" else range(7))]
    for row in MEMBERS:
        for value, column in zip(found[row].tolist(), zip(*known, strict=True), strict=True):
            mean = sum(column) / len(column)
            deviation = math.sqrt(sum((one - mean) ** 2 for one in column) / len(column))
            assert value == pytest.approx(mean - number * deviation, rel=1e-10, abs=1e-12)


def widest(rows):
    return max(math.dist(one, other) for one, other in itertools.combinations(rows, 2))


def furthest(row, rows):
    return max(math.dist(row, one) for one in rows)


@pytest.mark.parametrize("kind", ["deviation", "unit", "sign"])
@pytest.mark.parametrize("sees", ["colluders", "everything"])
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_min_max_goes_as_far_as_it_may_and_no_further(crafted, kind, sees, scale):
    honest = (normal(8, 5, seed=2) + 0.5) * scale
    found = crafted(MinMax(perturbation=kind, sees=sees, tolerance=1e-9), honest, MEMBERS)
    rows = [honest[row].tolist() for row in (MEMBERS if sees == "colluders" else range(8))]
    mean = [sum(column) / len(rows) for column in zip(*rows, strict=True)]
    sent = found[MEMBERS[0]].tolist()
    limit = widest(rows)
    assert furthest(sent, rows) <= limit * (1 + 1e-9)
    further = [m + (s - m) * 1.001 for s, m in zip(sent, mean, strict=True)]
    assert furthest(further, rows) > limit
    step = [(s - m) for s, m in zip(sent, mean, strict=True)]
    assert (
        all(value <= 0 for value in step)
        if kind == "deviation"
        else sum(a * b for a, b in zip(step, mean, strict=True)) < 0
    )


@pytest.mark.parametrize("seed", range(5))
def test_gamma_is_the_best_on_a_fine_grid(seed):
    honest = normal(5, 3, seed)
    direction = direction_of(honest, "unit")
    rows, mean, p = honest.tolist(), honest.mean(dim=0).tolist(), direction.tolist()
    limit, best = widest(rows), 0.0
    for step in range(20_000):
        gamma = step * 5e-4
        if furthest([m + gamma * one for m, one in zip(mean, p, strict=True)], rows) <= limit:
            best = max(best, gamma)
    assert largest_gamma(honest, direction, 1e-9) == pytest.approx(best, abs=1e-3)


def test_directions():
    honest = torch.tensor([[3.0, 0.0, -4.0], [3.0, 0.0, -4.0]], dtype=torch.float64)
    torch.testing.assert_close(
        direction_of(honest, "unit"), torch.tensor([-0.6, 0.0, 0.8], dtype=torch.float64), rtol=1e-15, atol=0
    )
    assert direction_of(honest, "sign").tolist() == [-1.0, 0.0, 1.0]
    spread = torch.tensor([[1.0, 2.0], [3.0, 2.0]], dtype=torch.float64)
    assert direction_of(spread, "deviation").tolist() == pytest.approx([-math.sqrt(2), 0.0])


@pytest.mark.parametrize(
    "attack", [MinMax(), MinMax(perturbation="unit"), MinMax(perturbation="sign"), Alie(z=1.5)]
)
def test_a_lone_colluder_of_a_round_sends_its_honest_update(crafted, attack):
    honest = normal(6, 4, dtype=torch.float32)
    assert torch.equal(crafted(attack, honest, (2,)), honest)


def test_equal_updates_leave_nothing_to_hide_in(crafted):
    honest = torch.ones(6, 4)
    assert torch.equal(crafted(MinMax(), honest, MEMBERS), honest)


@pytest.mark.parametrize("attack", [Ipm(), Alie(), MinMax()])
def test_one_malicious_client_cannot_estimate_from_colluders(make_threat, attack):
    with pytest.raises(ConfigError, match=r"attack\.malicious: \w+ estimates .* at least 2 of them, found 1"):
        attack.init(make_threat(members=(3,)), torch.Generator())


@pytest.mark.parametrize("attack", [Ipm, Alie, MinMax])
def test_reading_beyond_what_it_declares_is_refused(crafted, attack):
    class Greedy(attack):
        def honest(self, view):
            return view.updates.double()

    with pytest.raises(RoundError, match=r"reads view\.updates, which needs knowledge EVERYTHING"):
        crafted(Greedy(), normal(6, 4), MEMBERS)
    crafted(Greedy(sees="everything"), normal(6, 4), MEMBERS)
