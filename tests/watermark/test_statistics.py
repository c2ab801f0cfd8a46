"""M of the paper, the exact p-value of a key against all keys, and the matching index."""

import itertools
import math
from fractions import Fraction

import pytest
import torch

from fedsim.errors import ConfigError
from fedsim.watermark.marks import marked_features, number_of_marks
from fedsim.watermark.statistics import (
    judged_index,
    key_match,
    least_p,
    matching_index,
    null_of_index,
    null_of_matches,
)


def signs(seed, sets, marks, zeros=True):
    rng = torch.Generator().manual_seed(seed)
    return (
        torch.randint(-1 if zeros else 0, 2, (sets, marks), generator=rng)
        if zeros
        else (2 * torch.randint(0, 2, (sets, marks), generator=rng) - 1)
    )


@pytest.mark.parametrize(
    ("features", "sets", "expected"),
    [(745, 4, 107), (500, 4, 88), (6805, 4, 304), (745, 2, 317), (500, 2, 274), (6805, 2, 834)],
)
def test_the_numbers_of_marks_of_the_paper(features, sets, expected):
    assert number_of_marks(features, sets) == expected


def test_more_marks_than_features_are_not_asked_for():
    assert number_of_marks(7, 4) == 7
    assert number_of_marks(7, 2) == 7


def test_marks_are_the_features_in_use_most():
    x = torch.tensor([[[1.0, 0, 2, 0, 1], [1, 0, 0, 1, 1]], [[0, 0, -1, 1, 1], [0, 0, 1, 0, 1]]])
    assert marked_features(x, 2).tolist() == [2, 4]
    assert marked_features(x, 3).tolist() == [0, 2, 4]  # of equals, the first
    with pytest.raises(ConfigError, match="marks must be between 2 and 4, the features in use, found 5"):
        marked_features(x, 5)
    with pytest.raises(ConfigError, match="found 1"):
        marked_features(x, 1)


def every_key(marks, positive):
    for chosen in itertools.combinations(range(marks), positive):
        yield [1 if place in chosen else -1 for place in range(marks)]


@pytest.mark.parametrize(
    ("sets", "marks", "positive"), [(1, 6, 3), (3, 8, 4), (4, 9, 4), (2, 7, 1), (3, 5, 0)]
)
def test_p_is_the_share_of_all_keys_that_match_as_often(sets, marks, positive):
    seen = signs(marks, sets, marks)
    counts = [
        sum(int(value) == w for row in seen for value, w in zip(row, key, strict=True))
        for key in every_key(marks, positive)
    ]
    for matches, key in list(zip(counts, every_key(marks, positive), strict=True))[::3]:
        found = key_match(seen, torch.tensor(key, dtype=torch.float64))
        expected = Fraction(sum(other >= matches for other in counts), len(counts))
        assert found.matches == matches
        assert found.p == pytest.approx(float(expected), rel=1e-12)
        assert found.mean == pytest.approx(sum(counts) / len(counts), rel=1e-12)
        spread = sum((one - found.mean) ** 2 for one in counts) / len(counts)
        assert found.deviation == pytest.approx(math.sqrt(spread), abs=1e-7)


def test_tiny_tails_keep_their_digits():
    marks = 300
    seen = torch.ones(4, marks, dtype=torch.int64)
    seen[:, ::2] = -1
    found = key_match(seen, seen[0].double())
    assert found.matches == 4 * marks
    assert found.p == pytest.approx(float(Fraction(1, math.comb(marks, marks // 2))), rel=1e-10)
    assert found.p == pytest.approx(least_p(marks, marks // 2), rel=1e-10)


def test_a_distribution_sums_to_one_and_zeros_match_nothing():
    distribution, lowest = null_of_matches(signs(1, 4, 107), 53)
    assert distribution.sum() == pytest.approx(1.0, rel=1e-12)
    assert lowest >= 0
    nothing = key_match(torch.zeros(4, 10), torch.tensor([1.0, -1] * 5))
    assert (nothing.matches, nothing.p, nothing.z, nothing.deviation) == (0, 1.0, 0.0, 0.0)


def test_the_binomial_is_wrong_where_signs_agree_across_sets():
    row = signs(3, 1, 40, zeros=False)
    agreeing = row.expand(4, -1)
    apart = signs(4, 4, 40, zeros=False)
    key = torch.tensor([1.0, -1] * 20)
    binomial = math.sqrt(160 / 4)
    assert key_match(agreeing, key).deviation > 1.5 * binomial
    assert key_match(apart, key).deviation < 1.3 * binomial


def test_the_matching_index_counts_equal_signs_that_are_not_zero():
    seen = torch.tensor([[1, -1, 0, 1, 0], [1, -1, 0, -1, 1], [1, -1, 0, 1, 1]])
    assert matching_index(seen) == 2


def test_the_null_of_the_index():
    seen = signs(7, 30, 50)
    null = null_of_index(seen, 3, 200, torch.Generator().manual_seed(0))
    again = null_of_index(seen, 3, 200, torch.Generator().manual_seed(0))
    assert null.shape == (200,)
    assert torch.equal(null, again)
    by_pairs = {matching_index(seen[list(three)]) for three in itertools.combinations(range(30), 3)}
    assert set(null.tolist()) <= by_pairs
    top = judged_index(int(null.max()) + 1, null)
    assert top.rank_p == pytest.approx(1 / 201)
    assert top.z == pytest.approx((top.index - null.double().mean()) / null.double().std())
    assert top.p == pytest.approx(0.5 * math.erfc(top.z / math.sqrt(2)))
    flat = judged_index(3, torch.full((5,), 2))
    assert (flat.z, flat.p) == (math.inf, 0.0)
