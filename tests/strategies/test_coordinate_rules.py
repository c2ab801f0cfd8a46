import statistics

import pytest
import torch
from scipy import stats

from strategies.median import coordinate_median
from strategies.rlr import RobustLearningRate, agreement
from strategies.trimmed_mean import trimmed_mean

CLOSE = {torch.float32: {"rtol": 1e-6, "atol": 1e-7}, torch.float64: {"rtol": 1e-14, "atol": 1e-14}}
both = pytest.mark.parametrize("dtype", CLOSE)


@both
@pytest.mark.parametrize("n", [1, 2, 3, 8, 11])
def test_median_is_the_standard_library_s(n, dtype, normal):
    updates = normal(n, 9, dtype, seed=n)
    wanted = [statistics.median(column) for column in updates.T.tolist()]
    torch.testing.assert_close(coordinate_median(updates), torch.tensor(wanted, dtype=dtype), **CLOSE[dtype])


def test_of_an_even_number_both_middle_values_count():
    assert coordinate_median(torch.tensor([[1.0], [9.0], [2.0], [4.0]])).item() == 3.0


@both
def test_the_middle_of_two_huge_values_does_not_overflow(dtype):
    huge = torch.finfo(torch.float32).max
    assert coordinate_median(torch.full((2, 1), huge, dtype=dtype)).item() == huge


@both
@pytest.mark.parametrize(("n", "byzantine"), [(1, 0), (3, 1), (10, 0), (10, 3), (11, 5)])
def test_trimmed_mean_is_scipy_s(n, byzantine, dtype, normal):
    updates = normal(n, 9, dtype, seed=n)
    wanted = stats.trim_mean(updates.double().numpy(), (byzantine + 0.5) / n, axis=0)
    found = trimmed_mean(updates, byzantine)
    torch.testing.assert_close(found, torch.from_numpy(wanted).to(dtype), **CLOSE[dtype])


def test_trimmed_mean_between_mean_and_median(normal):
    updates = normal(9, 20)
    torch.testing.assert_close(trimmed_mean(updates, 0), updates.mean(dim=0), rtol=1e-14, atol=1e-14)
    assert torch.equal(trimmed_mean(updates, 4), coordinate_median(updates))


@both
@pytest.mark.parametrize("threshold", [0, 1, 3, 7])
def test_robust_learning_rate_follows_algorithm_1(threshold, dtype, normal, cohort_of, server_of):
    updates = normal(7, 30, dtype, seed=2)
    updates[:, 0], updates[2:, 1] = 0.0, 0.0  # a zero is on no side
    counts = [3, 1, 4, 1, 5, 9, 2]
    _, decision = RobustLearningRate(threshold=threshold).step(
        {}, cohort_of(updates, counts), server_of(30, dtype)
    )
    for j, column in enumerate(updates.T.tolist()):
        signs = sum((value > 0) - (value < 0) for value in column)
        mean = sum(count * value for count, value in zip(counts, column, strict=True)) / sum(counts)
        wanted = mean if abs(signs) >= threshold else -mean
        assert decision.update[j].item() == pytest.approx(wanted, rel=1e-5, abs=1e-7)


def test_agreement_counts_signs():
    updates = torch.tensor([[1.0, -1.0, 0.0], [2.0, 5.0, 0.0], [3.0, -2.0, -1.0]])
    assert agreement(updates).tolist() == [3, 1, 1]
