"""Tables of a sweep against a calculation by hand, and paired tests against scipy and enumeration."""

import csv
import io
import itertools
import math

import pytest
from scipy.stats import ttest_rel, wilcoxon

from fedsim.sweep.collect import flattened
from fedsim.sweep.paired import comparisons, holm, paired_tests
from fedsim.sweep.pivot import entry, pivots
from fedsim.sweep.text import comparisons_csv, comparisons_markdown, pivot_markdown, rows_csv, statistics_csv


def table(row):
    """attack x defence, three seeds; one run failed, one was not played, one cell has nothing."""
    values = {("a", "x"): [0.1, 0.2, 0.6], ("a", "y"): [0.5, None, 0.7], ("b", "x"): [0.25, 0.25, 0.25]}
    rows = [
        row({"attack": attack, "defence": defence}, seed, **({"m__last": value} if value is not None else {}))
        if value is not None
        else row({"attack": attack, "defence": defence}, seed, status="failed")
        for (attack, defence), column in values.items()
        for seed, value in enumerate(column)
    ]
    return rows + [row({"attack": "b", "defence": "y"}, seed, status="missing") for seed in range(3)]


def test_entries_are_means_with_student_s_interval(row):
    (pivot,) = pivots(table(row), ["attack"], ["defence"], ["m.last"])
    assert (pivot.rows, pivot.columns) == (("a", "b"), ("x", "y"))
    found = pivot.entries["a", "x"].statistic
    # mean 0.3; squared deviations 0.04 + 0.01 + 0.09 = 0.14, so s^2 = 0.07; t(0.975, 2) = 4.302653
    assert found["mean"] == pytest.approx(0.3, abs=1e-12)
    assert found["half_width"] == pytest.approx(4.302653 * math.sqrt(0.07 / 3), abs=1e-6)
    assert pivot.entries["a", "x"].text == "0.300 ± 0.657"
    assert pivot.entries["b", "x"].text == "0.250 ± 0.000"


def test_what_failed_and_what_is_missing_is_seen(row):
    rows = table(row)
    (pivot,) = pivots(rows, ["attack"], ["defence"], ["m.last"])
    assert pivot.entries["a", "y"].text == "0.600 ± 1.271 (2 of 3, 1 failed)"
    assert pivot.entries["b", "y"].text == "missing"
    assert entry([row({"a": "1"}, 0, status="failed")], "m").text == "failed"
    assert entry([row({"a": "1"}, 0)], "m").text == "-"
    assert (
        entry([row({"a": "1"}, 0, m=1), row({"a": "1"}, 1, status="missing")], "m").text == "1.000 (1 of 2)"
    )


def test_rows_and_columns_that_cannot_measure_a_metric_are_left_out(row):
    values = {("a", "x"): 0.5, ("a", "y"): None, ("b", "x"): None, ("b", "y"): None, ("a", "z"): None}
    rows = [
        row({"attack": attack, "defence": defence}, 0, **({} if value is None else {"m": value}))
        for (attack, defence), value in values.items()
    ]
    rows += [
        row({"attack": "b", "defence": "z"}, 0),
        row({"attack": "c", "defence": "x"}, 0, status="missing"),
    ]
    rows += [row({"attack": "c", "defence": name}, 0, status="failed") for name in "y"]
    (pivot,) = pivots(rows, ["attack"], ["defence"], ["m"])
    assert (pivot.rows, pivot.columns) == (("a", "c"), ("x", "y"))


def test_markdown_is_aligned(row):
    (pivot,) = pivots(table(row), ["attack"], ["defence"], ["m.last"])
    lines = pivot_markdown(pivot).splitlines()
    assert lines[0] == "**m.last**"
    assert lines[2].startswith("| attack \\ defence |")
    assert len({len(line) for line in lines[2:]}) == 1


def test_other_axes_make_further_tables_and_no_columns_make_metrics_the_columns(row):
    rows = [row({"a": a, "b": b}, 0, m=1.0, n=2.0) for a in "12" for b in "34"]
    crossed = pivots(rows, ["a"], ["b"], ["m", "n"])
    assert [(one.metric, one.title) for one in crossed] == [("m", "m"), ("n", "n")]
    listed = pivots(rows, ["a"], [], ["m", "n"])
    assert [(one.title, one.columns) for one in listed] == [("b=3", ("m", "n")), ("b=4", ("m", "n"))]
    both = pivots(rows, ["a", "b"], [], ["m"])
    assert both[0].rows == ("1 / 3", "1 / 4", "2 / 3", "2 / 4")


def test_csv_files_hold_the_same_numbers(row):
    rows = table(row)
    lines = list(csv.DictReader(io.StringIO(statistics_csv(rows, ["m.last"]))))
    assert [(line["attack"], line["defence"], line["n"]) for line in lines] == [
        ("a", "x", "3"),
        ("a", "y", "2"),
        ("b", "x", "3"),
        ("b", "y", "0"),
    ]
    assert float(lines[0]["mean"]) == pytest.approx(0.3)
    assert (lines[1]["failed"], lines[3]["ended"]) == ("1", "0")
    runs = list(csv.DictReader(io.StringIO(rows_csv(rows))))
    assert len(runs) == 12
    assert (runs[4]["status"], runs[4]["m.last"]) == ("failed", "")


@pytest.mark.parametrize("differences", [[0.1, 0.3, -0.05, 0.2, 0.15], [0.3, -0.2], [1.0, 2.0, 3.0, 4.0]])
def test_paired_tests_are_those_of_scipy_and_of_enumeration(differences):
    t, signed = paired_tests(differences)
    ours = [0.5 + one for one in differences]
    assert t == pytest.approx(ttest_rel(ours, [0.5] * len(ours)).pvalue, rel=1e-9)
    assert signed == pytest.approx(wilcoxon(differences).pvalue, rel=1e-12)
    ranks = [sorted(map(abs, differences)).index(abs(one)) + 1 for one in differences]
    positive = sum(rank for rank, one in zip(ranks, differences, strict=True) if one > 0)
    extreme = max(positive, sum(ranks) - positive)
    sums = [
        sum(itertools.compress(ranks, signs)) for signs in itertools.product([0, 1], repeat=len(differences))
    ]
    exact = 2 * sum(one >= extreme for one in sums) / len(sums)
    assert signed == pytest.approx(min(1.0, exact), rel=1e-12)


def test_differences_that_allow_no_test_have_no_p_value():
    assert paired_tests([0.3]) == (None, None)
    assert paired_tests([0.0, 0.0, 0.0]) == (None, None)
    assert paired_tests([0.25, 0.25])[0] is None


def holm_by_definition(values):
    """Reject in ascending order while p <= alpha / (m - k + 1): the smallest alpha that rejects each."""
    corrected = []
    for p in values:
        smaller = [other for other in values if other <= p]
        steps = [(len(values) - sum(one < other for one in values)) * other for other in smaller]
        corrected.append(min(1.0, max(steps)))
    return corrected


@pytest.mark.parametrize("values", [[0.01, 0.04, 0.03], [0.2], [0.9, 0.001, 0.5, 0.02, 0.0004], [0.6, 0.7]])
def test_holm_follows_its_definition(values):
    assert holm(values) == pytest.approx(holm_by_definition(values), rel=1e-12)


def test_holm_leaves_missing_values_out_and_accepts_ties():
    assert holm([None, 0.01, 0.02]) == [None, 0.02, 0.02]
    assert holm([0.02, 0.02]) == [0.04, 0.04]
    assert holm([]) == []


def test_comparisons_pair_by_seed_within_all_other_axes(row):
    first = {"x": [0.1, 0.2, 0.4], "y": [0.2, 0.5, 0.6], "z": [0.3, None, 0.9]}
    rows = [
        row({"rule": rule, "site": site}, seed, **({"m": value + shift} if value is not None else {}))
        for site, shift in (("s", 0.0), ("t", 1.0))
        for rule, column in first.items()
        for seed, value in enumerate(column)
    ]
    found = comparisons(rows, [("rule", "x")], ["m"])
    assert [(one.label, one.place, one.pairs) for one in found] == [
        ("y", "site=s", 3),
        ("z", "site=s", 2),
        ("y", "site=t", 3),
        ("z", "site=t", 2),
    ]
    assert found[0].difference == pytest.approx(0.2, abs=1e-12)  # 0.1, 0.3, 0.2
    assert found[1].difference == pytest.approx(0.35, abs=1e-12)  # 0.2, 0.5
    expected = ttest_rel(first["y"], first["x"]).pvalue
    assert found[0].t_test == pytest.approx(expected, rel=1e-9)
    raw = [one.t_test for one in found]
    assert [one.t_test_holm for one in found] == pytest.approx(holm_by_definition(raw))
    assert comparisons_csv(found).count("\n") == 5


def test_metrics_are_flattened_to_values():
    result = {
        "metrics": {
            "test_accuracy": {"model": "global", "last": {"value": 0.8, "round": 9, "quantiles": {"0.1": 1}}},
            "clean_test_accuracy": {"last": {"value": 0.9, "round": 9}},
            "attack_success": {"at_stop": 0.7, "floor_at_stop": 0.2, "auc50": None, "auc_rounds": 5},
            "attack_lifespan": {"rounds": 4, "still_alive": True},
            "detector": {"f1": 0.5},
        },
        "defence_active": False,
    }
    assert flattened(result) == pytest.approx(
        {
            "test_accuracy.last": 0.8,
            "clean_test_accuracy.last": 0.9,
            "attack_success.at_stop": 0.7,
            "attack_success.floor_at_stop": 0.2,
            "attack_success.auc_rounds": 5,
            "attack_lifespan.rounds": 4,
            "attack_lifespan.still_alive": 1,
            "detector.f1": 0.5,
            "defence_active": 0,
            "test_accuracy.change": -0.1,
            "attack_success.above_floor": 0.5,
        }
    )


def lived(row, attack, *pairs):
    """Runs of an attack, from (success at the stop, lifespan) of each seed."""
    return [
        row({"attack": attack}, seed, attack_success__at_stop=stop, attack_lifespan__rounds=rounds)
        for seed, (stop, rounds) in enumerate(pairs)
    ]


def test_runs_that_implanted_nothing_are_in_no_mean_of_lifespans_and_are_told(row):
    rows = lived(row, "a", (0.9, 10), (0.5, 20), (0.49, 0)) + lived(row, "b", (0.1, 0), (0.2, 0), (0.3, 0))
    (pivot,) = pivots(rows, ["attack"], [], ["attack_lifespan.rounds", "attack_success.at_stop"])
    found = pivot.entries["a", "attack_lifespan.rounds"]
    assert (found.statistic["mean"], found.statistic["n"]) == (15, 2)
    assert found.text.endswith("(2 of 3, 1 not implanted)")
    assert pivot.entries["b", "attack_lifespan.rounds"].text == "not implanted"
    assert pivot.entries["b", "attack_success.at_stop"].statistic["n"] == 3


def test_lifespans_are_compared_at_matched_success_at_the_stop(row):
    rows = lived(row, "a", (0.9, 10), (0.8, 20), (0.6, 5), (0.4, 0))
    rows += lived(row, "b", (0.8, 14), (0.6, 40), (0.55, 7), (0.45, 0)) + lived(row, "c", *[(0.3, 0)] * 4)
    metrics = ["attack_lifespan.rounds", "attack_success.at_stop"]
    first, second, *rest = comparisons(rows, [("attack", "a")], metrics, 0.1)
    assert (first.label, first.pairs, first.unmatched, first.difference) == ("b", 2, 2, 3)  # +4 and +2
    assert (second.label, second.pairs, second.unmatched, second.difference) == ("c", 0, 4, None)
    assert [(one.metric, one.pairs, one.unmatched) for one in rest] == [("attack_success.at_stop", 4, 0)] * 2
    told = comparisons_markdown([first, second, *rest], 0.1)
    assert "Pairs with success at the stop of at least 0.5 each, at most 0.1 apart." in told
    assert "2 of 4" in told
    assert "0 of 4" in told
    wide = comparisons(rows, [("attack", "a")], metrics[:1], 0.3)
    assert (wide[0].pairs, wide[0].difference) == (3, pytest.approx(26 / 3))  # and +20
