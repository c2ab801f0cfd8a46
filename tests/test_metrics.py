import dataclasses
import math

import pytest

from fedsim.metrics import Sum, merge


def test_a_mean_over_unequal_clients_is_the_mean_over_examples():
    merged = merge([{"loss": Sum(30.0, 10)}, {"loss": Sum(1.0, 1)}])
    assert merged["loss"].mean == pytest.approx(31 / 11)


def test_names_keep_the_order_of_their_first_appearance():
    assert list(merge([{"b": Sum(1, 1)}, {"a": Sum(1, 1), "b": Sum(1, 1)}])) == ["b", "a"]


def test_a_name_that_only_some_parts_have_counts_only_those():
    merged = merge([{"a": Sum(2, 1)}, {"b": Sum(3, 1)}, {"a": Sum(4, 1)}])
    assert merged == {"a": Sum(6, 2), "b": Sum(3, 1)}


def test_nothing_counted_has_no_mean():
    assert Sum(0, 0).mean is None
    assert merge([]) == {}
    assert (Sum(0, 0) + Sum(3, 2)).mean == 1.5


def test_what_is_not_finite_stays_visible():
    assert math.isnan((Sum(1, 1) + Sum(math.nan, 1)).mean)


def test_merging_is_associative_for_whole_numbers_and_changes_no_part():
    parts = [{"a": Sum(float(i), i)} for i in range(1, 6)]
    assert merge(parts) == merge([merge(parts[:2]), merge(parts[2:])])
    assert parts[0] == {"a": Sum(1.0, 1)}


def test_a_sum_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Sum(1, 1).total = 2
