import re
from dataclasses import replace

import pytest
import torch

from fedsim.contracts import Failure, LocalUpdate
from fedsim.errors import RoundError
from fedsim.params import Layout
from fedsim.run.replies import TooManyFailures, cohort_of, enforce_policy, integers_of_largest, sort_replies

LAYOUT = Layout.of({"w": torch.zeros(3), "count": torch.zeros((), dtype=torch.int64)})


def reply(partition=0, examples=5, **changes):
    base = LocalUpdate(
        partition=partition,
        update=torch.ones(3),
        integers={"count": torch.tensor(partition)},
        examples=examples,
        steps=1,
        uplink={"c": torch.ones(2)},
        metrics={},
        private={},
    )
    return replace(base, **changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"update": torch.tensor([1.0, float("nan"), 1.0])}, "not finite in 1 of 3 values"),
        ({"update": torch.tensor([1.0, float("inf"), 1.0])}, "not finite"),
        ({"update": torch.ones(4)}, r"shape \(4,\), wanted \(3,\)"),
        ({"update": torch.ones(3, 1)}, "shape"),
        ({"update": torch.ones(3, dtype=torch.float64)}, "type torch.float64, wanted torch.float32"),
        ({"examples": 0}, "stands for 0 examples"),
        ({"integers": {}}, "integer tensor 'count' is missing"),
        ({"integers": {"count": torch.tensor(1.0)}}, "integer tensor 'count'"),
        ({"uplink": {"c": torch.tensor([float("nan")])}}, "uplink tensor 'c' is not finite"),
    ],
)
def test_unusable_replies_are_refused_and_named(changes, message):
    found = sort_replies([reply(4), reply(2, **changes)], LAYOUT, round=7)
    assert [one.partition for one in found.accepted] == [4]
    (failure,) = found.failures
    assert (failure.round, failure.partition, failure.kind) == (7, 2, "refused")
    assert re.search(message, failure.message)


def test_accepted_replies_come_in_partition_order_and_failures_stay():
    failure = Failure(1, 9, 0, "died", "gone")
    found = sort_replies([reply(3), failure, reply(1)], LAYOUT, round=1)
    assert [one.partition for one in found.accepted] == [1, 3]
    assert found.failures == (failure,)


@pytest.mark.parametrize(
    ("failures", "asked", "allowed"), [(0, 4, 0.0), (1, 4, 0.25), (3, 4, 1.0), (29, 100, 0.29)]
)
def test_few_enough_failures_pass(failures, asked, allowed):
    enforce_policy(1, asked, [Failure(1, p, 0, "exception", "x") for p in range(failures)], allowed, "train")


@pytest.mark.parametrize(("failures", "asked", "allowed"), [(1, 4, 0.0), (2, 4, 0.25), (4, 4, 1.0)])
def test_too_many_failures_name_clients_fault_and_key(failures, asked, allowed):
    ledger = [Failure(3, p, 0, "exception", f"fault {p}") for p in range(failures)]
    with pytest.raises(
        TooManyFailures, match=rf"Round 3: {failures} of {asked} clients failed to train"
    ) as caught:
        enforce_policy(3, asked, ledger, allowed, "train")
    assert caught.value.failures == tuple(ledger)
    assert "exception: fault 0" in str(caught.value)
    wanted = "no reply is left" if failures == asked else "failures.max_failed_fraction"
    assert wanted in str(caught.value)


def test_a_cohort_has_rows_in_partition_order():
    cohort = cohort_of(2, [reply(1, 5), reply(3, 7, update=torch.full((3,), 2.0))], LAYOUT)
    assert cohort.partitions == (1, 3)
    assert cohort.updates.tolist() == [[1.0] * 3, [2.0] * 3]
    assert cohort.examples.tolist() == [5, 7]
    assert cohort.extras["c"].shape == (2, 2)


def test_different_uplinks_are_refused():
    with pytest.raises(RoundError, match="clients 1 and 3 sent different uplink"):
        cohort_of(2, [reply(1), reply(3, uplink={})], LAYOUT)


def test_integers_come_from_the_largest_client_and_ties_from_the_lowest_partition():
    assert integers_of_largest([reply(1, 5), reply(3, 7), reply(4, 7)])["count"] == 3


def test_rows_of_one_matrix_are_taken_as_they_lie():
    matrix = torch.arange(6.0).view(2, 3).clone()
    accepted = [reply(place, update=row) for place, row in enumerate(matrix.unbind(0))]
    assert sort_replies(accepted, LAYOUT, round=1).failures == ()
    assert cohort_of(1, accepted, LAYOUT).updates.data_ptr() == matrix.data_ptr()
    turned = cohort_of(1, accepted[::-1], LAYOUT).updates
    assert torch.equal(turned, matrix.flip(0))
    assert turned.data_ptr() != matrix.data_ptr()
    assert torch.equal(cohort_of(1, accepted[1:], LAYOUT).updates, matrix[1:])


def test_large_but_finite_values_are_accepted_although_their_sum_is_infinite():
    matrix = torch.full((2, 3), 3e38)
    accepted = [reply(place, update=row) for place, row in enumerate(matrix.unbind(0))]
    assert len(sort_replies(accepted, LAYOUT, round=1).accepted) == 2
