import math

import pytest
import torch
from scipy import stats

from strategies.centred_clipping import CentredClipping
from strategies.noise import gaussian
from strategies.norm_clipping import NormClipping

both = pytest.mark.parametrize(("dtype", "rel"), [(torch.float32, 1e-5), (torch.float64, 1e-12)])


@both
@pytest.mark.parametrize("weighted", [True, False])
def test_norm_clipping_follows_the_formula(dtype, rel, weighted, normal, cohort_of, server_of):
    updates, examples = (
        normal(5, 4, dtype) * torch.tensor([[0.1], [1.0], [3.0], [0.0], [9.0]]).to(dtype),
        [1, 2, 3, 4, 5],
    )
    rule = NormClipping(bound=1.5, weighted=weighted)
    _, decision = rule.step({}, cohort_of(updates, examples), server_of(4, dtype))
    wanted = [0.0] * 4
    for row, count in zip(updates.tolist(), examples, strict=True):
        share = count / 15 if weighted else 1 / 5
        cut = 1 / max(1.0, math.hypot(*row) / 1.5)
        wanted = [total + share * cut * value for total, value in zip(wanted, row, strict=True)]
    assert decision.update.tolist() == pytest.approx(wanted, rel=rel, abs=rel)


def test_no_client_moves_the_mean_by_more_than_its_share_of_the_bound(normal, cohort_of, server_of):
    updates = normal(4, 6)
    loud = updates.clone()
    loud[1] *= 1e9
    rule = NormClipping(bound=0.5, weighted=False)
    calm, moved = (rule.step({}, cohort_of(rows), server_of(6))[1].update for rows in (updates, loud))
    assert torch.dist(calm, moved) <= 2 * 0.5 / 4 + 1e-12
    assert moved.norm() <= 0.5


def test_noise_is_normal_has_its_deviation_and_comes_from_the_round_s_stream(cohort_of, server_of):
    rule, cohort = NormClipping(bound=1.0, noise=0.25), cohort_of(torch.zeros(3, 20_000))
    noise, again, other = (
        rule.step({}, cohort, server_of(20_000, seed=seed))[1].update for seed in (0, 0, 1)
    )
    assert torch.equal(noise, again)
    assert not torch.equal(noise, other)
    assert stats.kstest(noise.double().numpy() / 0.25, "norm").pvalue > 0.01
    assert abs(torch.corrcoef(torch.stack([noise, other]))[0, 1].item()) < 0.03


def test_without_noise_nothing_is_drawn():
    rng = torch.Generator().manual_seed(0)
    before = rng.get_state()
    assert gaussian(torch.ones(3), 0.0, rng).tolist() == [0, 0, 0]
    assert torch.equal(rng.get_state(), before)


@both
@pytest.mark.parametrize("iterations", [1, 3])
def test_centred_clipping_follows_algorithm_2_over_rounds(
    dtype, rel, iterations, normal, cohort_of, server_of
):
    rule = CentredClipping(radius=1.2, iterations=iterations)
    state, centre = rule.init(torch.zeros(4, dtype=dtype)), [0.0] * 4
    for number in range(3):
        updates = normal(6, 4, dtype, seed=number) * (1 + number)
        state, decision = rule.step(state, cohort_of(updates), server_of(4, dtype))
        for _ in range(iterations):
            step = [0.0] * 4
            for row in updates.tolist():
                cut = min(1.0, 1.2 / math.dist(row, centre))
                step = [s + (x - v) * cut / 6 for s, x, v in zip(step, row, centre, strict=True)]
            centre = [v + s for v, s in zip(centre, step, strict=True)]
        assert decision.update.tolist() == pytest.approx(centre, rel=rel, abs=rel)
        assert state["centre"].tolist() == pytest.approx(
            centre, rel=1e-5 if dtype == torch.float32 else 1e-12
        )


def test_a_client_at_the_centre_is_not_divided_by_its_distance(cohort_of, server_of):
    rule = CentredClipping(radius=1.0)
    _, decision = rule.step(rule.init(torch.zeros(2)), cohort_of(torch.zeros(3, 2)), server_of(2))
    assert decision.weights.tolist() == pytest.approx([1 / 3] * 3)


def test_a_wide_radius_is_the_mean_and_the_centre_follows(normal, cohort_of, server_of):
    rule, updates = CentredClipping(radius=1e6), normal(5, 3)
    state = {"centre": torch.full((3,), 100.0, dtype=torch.float64)}
    after, decision = rule.step(state, cohort_of(updates), server_of(3))
    torch.testing.assert_close(decision.update, updates.mean(dim=0), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(after["centre"], updates.mean(dim=0), rtol=1e-12, atol=1e-12)


def test_last_round_s_change_of_a_variance_is_not_made_again(cohort_of, server_of, layout):
    rule, state = CentredClipping(radius=0.01), {"centre": torch.full((layout.size,), -0.5).double()}
    _, decision = rule.step(state, cohort_of(torch.zeros(3, layout.size)), server_of(layout.size))
    assert decision.update[12:16].tolist() == [0] * 4
    assert decision.update[0] < -0.4
