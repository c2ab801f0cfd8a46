import math

import pytest
import torch

from fedsim.errors import RoundError
from strategies.krum import Krum, krum_scores
from strategies.multi_krum import MultiKrum
from strategies.nnm import NearestNeighbourMixing, nearest

both = pytest.mark.parametrize(("dtype", "rtol"), [(torch.float32, 1e-6), (torch.float64, 1e-12)])


def scores_by_definition(updates, byzantine):
    """Section 4: sums of squared distances to the n - f - 2 closest others."""
    vectors = updates.double().tolist()
    scores = []
    for i, vector in enumerate(vectors):
        others = sorted(math.dist(vector, other) ** 2 for j, other in enumerate(vectors) if j != i)
        scores.append(math.fsum(others[: len(vectors) - byzantine - 2]))
    return scores


@both
@pytest.mark.parametrize(("n", "byzantine"), [(3, 0), (5, 1), (7, 1), (11, 4)])
def test_scores_follow_the_definition(n, byzantine, dtype, rtol, normal):
    updates = normal(n, 5, dtype, seed=n)
    wanted = torch.tensor(scores_by_definition(updates, byzantine), dtype=torch.float64)
    torch.testing.assert_close(krum_scores(updates, byzantine), wanted, rtol=rtol, atol=0)


@both
def test_krum_takes_the_row_with_the_lowest_score(dtype, rtol, normal, cohort_of, server_of):
    updates = normal(9, 5, dtype, seed=1)
    scores = scores_by_definition(updates, 2)
    best = scores.index(min(scores))
    _, decision = Krum(byzantine=2).step({}, cohort_of(updates), server_of(5))
    assert torch.equal(decision.update, updates[best])
    assert decision.weights.tolist() == [float(place == best) for place in range(9)]


@both
@pytest.mark.parametrize("keep", [None, 1, 3, 9])
def test_multi_krum_averages_the_lowest_scores(keep, dtype, rtol, normal, cohort_of, server_of):
    updates = normal(9, 5, dtype, seed=1)
    scores = scores_by_definition(updates, 2)
    best = sorted(range(9), key=scores.__getitem__)[: 7 if keep is None else keep]
    _, decision = MultiKrum(byzantine=2, keep=keep).step({}, cohort_of(updates), server_of(5))
    wanted = torch.stack([updates[place].double() for place in best]).mean(dim=0).to(dtype)
    torch.testing.assert_close(decision.update, wanted, rtol=rtol, atol=rtol)
    assert [place for place, weight in enumerate(decision.weights.tolist()) if weight] == sorted(best)
    assert decision.weights.sum().item() == pytest.approx(1, rel=1e-12)


def test_of_equal_scores_the_lowest_partition_wins(cohort_of, server_of):
    updates = torch.tensor([[5.0], [1.0], [1.0], [1.0], [-9.0]])
    _, decision = Krum(byzantine=1).step({}, cohort_of(updates), server_of(1))
    assert decision.weights.tolist() == [0, 1, 0, 0, 0]


def test_two_colluders_that_coincide_do_not_win(normal, cohort_of, server_of):
    updates = normal(9, 5)
    updates[:2] = 50.0
    _, decision = Krum(byzantine=2).step({}, cohort_of(updates), server_of(5))
    assert decision.weights[:2].tolist() == [0, 0]


def test_more_to_keep_than_replies(normal, cohort_of, server_of):
    with pytest.raises(RoundError, match=r"keep=8 needs at least 8 replies, got 7: lower strategy\.keep"):
        MultiKrum(byzantine=1, keep=8).step({}, cohort_of(normal(7, 2)), server_of(2))


@both
@pytest.mark.parametrize(("n", "byzantine"), [(1, 0), (3, 1), (8, 3), (9, 0)])
def test_mixing_averages_the_nearest(n, byzantine, dtype, rtol, normal, server_of):
    updates = normal(n, 6, dtype, seed=n)
    kept = updates.clone()
    found = NearestNeighbourMixing(byzantine=byzantine).mix(updates, server_of(6)).rows
    vectors = updates.double().tolist()
    wanted = []
    for vector in vectors:
        order = sorted(vectors, key=lambda other: math.dist(vector, other))[: n - byzantine]
        wanted.append([math.fsum(column) / (n - byzantine) for column in zip(*order, strict=True)])
    torch.testing.assert_close(
        found, torch.tensor(wanted, dtype=torch.float64).to(dtype), rtol=rtol, atol=rtol
    )
    assert torch.equal(updates, kept)


def test_a_row_mixes_itself_in_before_its_copies():
    mixing = nearest(torch.zeros(5, 2), 2)
    assert mixing.sum(dim=1).tolist() == pytest.approx([1.0] * 5)
    assert bool((mixing.diagonal() > 0).all())


def test_mixing_moves_with_the_rows_and_scales_with_them(normal, server_of):
    updates, rule = normal(9, 20), NearestNeighbourMixing(byzantine=3)

    def mix(rows, server):
        return rule.mix(rows, server).rows

    mixed = mix(updates, server_of(20))
    torch.testing.assert_close(mix(updates + 3, server_of(20)), mixed + 3, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(mix(-5 * updates, server_of(20)), -5 * mixed, rtol=1e-12, atol=1e-12)
    order = torch.randperm(9, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(mix(updates[order], server_of(20)), mixed[order], rtol=1e-12, atol=1e-12)


def test_too_few_rows_to_mix(normal, server_of):
    with pytest.raises(RoundError, match="nnm with byzantine=2 needs at least 5 replies, got 4: lower"):
        NearestNeighbourMixing(byzantine=2).mix(normal(4, 3), server_of(3))


def test_mixing_does_not_look_at_batch_norm_statistics(normal, server_of, layout):
    updates = normal(7, layout.size)
    calm = NearestNeighbourMixing(byzantine=2).mix(updates, server_of(layout.size))
    updates[:, 12:16] *= 1000  # norm.running_var
    wild = NearestNeighbourMixing(byzantine=2).mix(updates, server_of(layout.size))
    assert torch.equal(calm.origins, wild.origins)
    torch.testing.assert_close(wild.rows[:, 12:16], 1000 * calm.rows[:, 12:16], rtol=1e-12, atol=0)
