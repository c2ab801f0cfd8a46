"""Axes settled on validation data: the right setting, for each method by itself, never by test data."""

import pytest

from fedsim.errors import ConfigError
from fedsim.sweep.file import read_sweep
from fedsim.sweep.output import markdown
from fedsim.sweep.tuning import settled


def grid(row, metric, values):
    """method x rate, two seeds each."""
    return [
        row({"method": method, "rate": rate}, seed, **({metric: value, "test": 1 - value}))
        for (method, rate), pair in values.items()
        for seed, value in enumerate(pair)
    ]


VALUES = {
    ("ditto", "low"): [0.5, 0.7],
    ("ditto", "high"): [0.9, 0.2],
    ("local", "low"): [0.1, 0.1],
    ("local", "high"): [0.3, 0.2],
}


def test_each_method_keeps_its_own_best_mean(row):
    kept, choices = settled(grid(row, "val", VALUES), ["rate"], "val")
    assert [(one.place, one.chosen, one.candidates, one.complete) for one in choices] == [
        ("method=ditto", "rate=low", 2, True),
        ("method=local", "rate=high", 2, True),
    ]
    assert [one.value for one in choices] == pytest.approx([0.6, 0.25])
    assert [one.axes for one in kept] == [{"method": "ditto"}] * 2 + [{"method": "local"}] * 2
    assert [one.metrics["test"] for one in kept] == pytest.approx([0.5, 0.3, 0.7, 0.8])


def test_losses_are_best_where_they_are_lowest(row):
    _, choices = settled(grid(row, "val_loss__best", VALUES), ["rate"], "val_loss.best")
    assert [one.chosen for one in choices] == ["rate=high", "rate=low"]
    assert choices[0].value == pytest.approx(0.55)


def test_a_setting_that_lost_a_seed_stands_behind_the_others(row):
    rows = [one for one in grid(row, "val", VALUES) if one.axes["method"] == "ditto"]
    rows[0] = row({"method": "ditto", "rate": "low"}, 0, status="failed")
    _, (choice,) = settled(rows, ["rate"], "val")
    assert (choice.chosen, choice.complete) == ("rate=high", False)


def test_where_nothing_was_measured_it_is_seen(row):
    rows = [row({"method": "m", "rate": rate}, 0, status="missing") for rate in ("low", "high")]
    kept, (choice,) = settled(rows, ["rate"], "val")
    assert (choice.chosen, choice.value) == (None, None)
    assert [(one.axes, one.status) for one in kept] == [({"method": "m"}, "missing")]


TUNED = """
[sweep]
"client.optimizer.learning_rate" = [0.1, 0.2]
strategy = ["fedavg", "median"]
[sweep.report]
tune = "client.optimizer.learning_rate"
compare = "fedavg"
metrics = "test"
by = "val"
"""


def test_a_settled_axis_is_in_no_table(write, row):
    sweep = read_sweep(write(TUNED))
    assert (sweep.report.rows, sweep.report.columns) == (("strategy",), ())
    rows = [
        row(
            {"client.optimizer.learning_rate": rate, "strategy": rule}, seed, val=float(rate), test=0.5 + seed
        )
        for rate in ("0.1", "0.2")
        for rule in ("fedavg", "median")
        for seed in range(2)
    ]
    text = markdown(sweep, rows)
    assert "| fedavg   | 1.000 ± 6.353 |" in text
    assert "Settled by the best mean of val over seeds" in text
    assert text.count("client.optimizer.learning_rate=0.2") == 2


def test_a_settled_axis_cannot_be_shown(write):
    with pytest.raises(ConfigError, match="'strategy' is settled, so it cannot be shown too"):
        read_sweep(
            write(
                TUNED.replace(
                    'tune = "client.optimizer.learning_rate"', "tune = 'strategy'\nrows = 'strategy'"
                )
            )
        )
    with pytest.raises(ConfigError, match="no axis is left"):
        read_sweep(write('[sweep]\nrounds = [1, 2]\n[sweep.report]\ntune = "rounds"\n'))
