import math

import pytest

from fedsim.run.summary import interval, summary_of


def test_the_interval_follows_student():
    found = interval([1.0, 2.0, 4.0])
    # by hand: mean 7/3, deviation sqrt(7/3), t(0.975, 2) = 4.302652729911275 from a printed table
    half = 4.302652729911275 * math.sqrt(7 / 3) / math.sqrt(3)
    assert found["mean"] == pytest.approx(7 / 3, rel=1e-12)
    assert found["std"] == pytest.approx(math.sqrt(7 / 3), rel=1e-12)
    assert found["half_width"] == pytest.approx(half, rel=1e-9)
    assert found["low"] == pytest.approx(7 / 3 - half, rel=1e-9)


def test_one_value_has_no_interval():
    assert interval([0.5]) == {
        "n": 1,
        "mean": 0.5,
        "std": None,
        "half_width": None,
        "low": None,
        "high": None,
    }


def result(seed, value, status="completed"):
    metrics = {
        "test_accuracy": {"last": {"value": value, "round": 1}, "best": None, "validation_selected": None}
    }
    return {"seed": seed, "status": status, "metrics": metrics, "model_sha256": f"hash{seed}"}


def test_failed_seeds_are_named_and_not_averaged():
    found = summary_of("x", [result(1, 0.5), result(2, 0.7), result(3, 0.1, "failed")])
    assert found["status"] == {"1": "completed", "2": "completed", "3": "failed"}
    assert found["metrics"]["test_accuracy"]["last"]["mean"] == pytest.approx(0.6)
    assert found["metrics"]["test_accuracy"]["last"]["values"] == {"1": 0.5, "2": 0.7}
    assert found["metrics"]["test_accuracy"]["best"] is None


def test_all_seeds_failed():
    assert summary_of("x", [result(1, 0.5, "failed")])["metrics"] == {}
