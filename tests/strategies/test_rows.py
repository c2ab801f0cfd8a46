import math
from fractions import Fraction

import pytest
import torch

from fedsim.errors import RoundError
from strategies import rows


def by_definition(updates):
    """Squared distances in rational numbers."""
    exact = [[Fraction(value) for value in row] for row in updates.tolist()]
    return [[float(sum((a - b) ** 2 for a, b in zip(x, y, strict=True))) for y in exact] for x in exact]


def clustered(dtype, *scales):
    """Rows in groups: within each, rows lie `scales[i]` apart; groups are far from each other."""
    generator = torch.Generator().manual_seed(3)
    groups = []
    for number, scale in enumerate(scales):
        centre = torch.randn(1, 7, dtype=torch.float64, generator=generator) * 10.0 ** (3 * number)
        groups.append(centre + scale * torch.randn(4, 7, dtype=torch.float64, generator=generator))
    return torch.cat(groups).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("scales", [(1.0,), (1.0, 1.0, 1.0), (1e-6, 1e-3, 1e-1, 1.0), (0.0, 1e-7, 1e-5)])
def test_squared_distances_keep_their_digits_beside_far_away_rows(dtype, scales):
    updates = clustered(dtype, *scales)
    wanted = torch.tensor(by_definition(updates), dtype=torch.float64)
    found = rows.squared_distances(updates)
    torch.testing.assert_close(found, wanted, rtol=1e-7, atol=0)
    assert torch.equal(found, found.T)


def test_one_huge_row_leaves_the_others_distances_intact():
    updates = clustered(torch.float32, 1.0)
    updates[2] *= 1e30
    wanted = torch.tensor(by_definition(updates), dtype=torch.float64)
    torch.testing.assert_close(rows.squared_distances(updates), wanted, rtol=1e-7, atol=0)


def test_squares_that_overflow_are_infinite_and_the_rest_is_right():
    updates = torch.tensor([[1e200], [1.0], [3.0]], dtype=torch.float64)
    found = rows.squared_distances(updates)
    assert found.tolist() == [[0, math.inf, math.inf], [math.inf, 0, 4], [math.inf, 4, 0]]


@pytest.mark.parametrize("n", [0, 1, 2])
@pytest.mark.parametrize("d", [0, 1, 3])
def test_distances_of_hardly_anything(n, d):
    assert torch.equal(rows.squared_distances(torch.ones(n, d)), torch.zeros(n, n).double())


def test_shift_and_scale_act_on_the_rows(normal):
    updates, shift, scale = normal(5, 6), normal(1, 6, seed=1)[0], torch.arange(1.0, 6.0).double()
    wanted = torch.tensor(by_definition((updates + shift) * scale[:, None]), dtype=torch.float64)
    torch.testing.assert_close(
        rows.squared_distances(updates, shift=shift, scale=scale), wanted, rtol=1e-12, atol=1e-12
    )


def test_blocks_do_not_change_the_result(normal, monkeypatch):
    updates = normal(5, 40, torch.float32)
    whole = rows.squared_distances(updates), rows.products(updates, updates[0]), rows.norms(updates)
    monkeypatch.setattr(rows, "BLOCK_BYTES", 8 * 5 * 7)
    assert [columns.stop for columns in rows.column_blocks(updates)] == [7, 14, 21, 28, 35, 40]
    torch.testing.assert_close(rows.squared_distances(updates), whole[0], rtol=1e-13, atol=1e-13)
    torch.testing.assert_close(rows.products(updates, updates[0]), whole[1], rtol=1e-13, atol=1e-13)
    doubled = rows.by_column(updates, lambda block: 2 * block[0])
    assert torch.equal(doubled, 2 * updates[0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_cosine_distances_follow_the_definition(dtype, normal):
    updates, shift = normal(6, 8, dtype), normal(1, 8, dtype, seed=1)[0] * 100
    for moved in (None, shift):
        vectors = updates.double() if moved is None else updates.double() + moved.double()
        found = rows.cosine_distances(updates, shift=moved)
        for i, x in enumerate(vectors.tolist()):
            for j, y in enumerate(vectors.tolist()):
                inner = math.fsum(a * b for a, b in zip(x, y, strict=True))
                cosine = inner / math.hypot(*x) / math.hypot(*y)
                assert found[i, j].item() == pytest.approx(1 - cosine, abs=1e-14)


def test_cosine_distances_keep_their_digits_where_the_angle_is_tiny():
    angle = 1e-9
    pair = torch.tensor([[1.0, 0.0], [math.cos(angle), math.sin(angle)]], dtype=torch.float64)
    assert rows.cosine_distances(pair)[0, 1].item() == pytest.approx(angle**2 / 2, rel=1e-6)


def test_a_row_of_zeros_is_at_right_angles_to_all():
    found = rows.cosine_distances(torch.tensor([[0.0, 0.0], [3.0, 4.0], [-3.0, -4.0]]))
    assert found.tolist() == [[0, 1, 1], [1, 0, 2], [1, 2, 0]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_norms_products_and_combinations_follow_the_definition(dtype, normal):
    updates, vector = normal(4, 9, dtype), normal(1, 9, dtype, seed=1)[0]
    lists, other = updates.tolist(), vector.tolist()
    lengths = [math.hypot(*row) for row in lists]
    apart = [math.dist(row, other) for row in lists]
    inner = [math.fsum(a * b for a, b in zip(row, other, strict=True)) for row in lists]
    mixed = [math.fsum(c * row[j] for c, row in zip((0, 2, -1, 0.5), lists, strict=True)) for j in range(9)]
    for found, wanted in [
        (rows.norms(updates), lengths),
        (rows.norms(updates, vector), apart),
        (rows.products(updates, vector), inner),
        (rows.combination(updates, torch.tensor([0, 2, -1, 0.5])), mixed),
    ]:
        torch.testing.assert_close(found, torch.tensor(wanted, dtype=torch.float64), rtol=1e-13, atol=1e-13)


def test_sorted_columns_are_a_copy():
    block = torch.tensor([[3.0, 1.0], [1.0, 2.0], [2.0, -1.0]])
    assert rows.sorted_columns(block).tolist() == [[1, -1], [2, 1], [3, 2]]
    assert block.tolist() == [[3, 1], [1, 2], [2, -1]]


def test_clip_factors_at_zero_and_at_the_bound():
    assert rows.clip_factors(torch.tensor([0.0, 1.0, 2.0, 8.0]).double(), 2.0).tolist() == [1, 1, 1, 0.25]


def test_a_cohort_that_is_too_small_says_what_to_change(cohort_of):
    with pytest.raises(RoundError, match=r"^Round 7: krum needs at least 3 replies, got 2: lower x or raise"):
        rows.require_cohort("krum", cohort_of(torch.zeros(2, 1), round=7), 3, "lower x")
