"""Paired comparisons over seeds: every value of an axis against one of them, all else equal.

Student's paired t-test and Wilcoxon's signed-rank test; p-values of one metric are corrected together by
Holm, "A simple sequentially rejective multiple test procedure", Scandinavian Journal of Statistics 6, 1979.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from fedsim.run.summary import interval
from fedsim.sweep.collect import Row
from fedsim.sweep.matched import comparable
from fedsim.sweep.pivot import groups, told


@dataclass(frozen=True)
class Comparison:
    """One value of the axis against the baseline.

    Attributes:
        metric: its path.
        label: of the compared value.
        baseline: of the other.
        place: the labels on all other axes.
        pairs: seeds that both have.
        unmatched: seeds that both have, but that are no pair; see `fedsim.sweep.matched`.
        difference: mean over pairs of value minus baseline; None without a pair.
        half_width: of its 95 % interval by Student's t; None with one pair.
        t_test, wilcoxon: two-sided p-values; None with fewer than two pairs, and where all differences are
            equal up to rounding (t) or zero (Wilcoxon).
        t_test_holm, wilcoxon_holm: corrected over all comparisons of the metric.
    """

    metric: str
    label: str
    baseline: str
    place: str
    pairs: int
    difference: float | None
    half_width: float | None
    t_test: float | None
    wilcoxon: float | None
    t_test_holm: float | None = None
    wilcoxon_holm: float | None = None
    unmatched: int = 0


def comparisons(
    rows: Sequence[Row],
    baselines: Sequence[tuple[str, str]],
    metrics: Sequence[str],
    within: float = float("inf"),
) -> list[Comparison]:
    """All of them, metric by metric; cells without a common seed are left out.

    Args:
        rows: of the whole sweep.
        baselines: axis and label of each.
        metrics: paths; p-values are corrected over all comparisons of one metric.
        within: lifespans are compared where success at the stop differs by no more than this.
    """
    found = []
    for metric in metrics:
        family = [one for baseline in baselines for one in _family(rows, *baseline, metric, within)]
        t_tests = holm([one.t_test for one in family])
        wilcoxons = holm([one.wilcoxon for one in family])
        found += [
            replace(one, t_test_holm=t, wilcoxon_holm=w)
            for one, t, w in zip(family, t_tests, wilcoxons, strict=True)
        ]
    return found


def _family(rows: Sequence[Row], axis: str, baseline: str, metric: str, within: float) -> list[Comparison]:
    others = [name for name in rows[0].axes if name != axis] if rows else []
    found = []
    for labels, part in groups(rows, others).items():
        by_label = {label: _having(cell, metric) for (label,), cell in groups(part, [axis]).items()}
        usual = by_label.get(baseline, {})
        for label, runs in by_label.items():
            common = [(runs[seed], usual[seed]) for seed in usual if seed in runs]
            if label == baseline or not common:
                continue
            pairs = [pair for pair in common if comparable(*pair, metric, within)]
            differences = [one.metrics[metric] - other.metrics[metric] for one, other in pairs]
            compared = _compared(metric, label, baseline, told(others, labels), differences)
            found.append(replace(compared, unmatched=len(common) - len(pairs)))
    return found


def _having(rows: Sequence[Row], metric: str) -> Mapping[int, Row]:
    return {row.seed: row for row in rows if row.ended and metric in row.metrics}


def _compared(metric: str, label: str, baseline: str, place: str, differences: Sequence[float]) -> Comparison:
    t, wilcoxon = paired_tests(differences)
    return Comparison(
        metric,
        label,
        baseline,
        place,
        len(differences),
        fmean(differences) if differences else None,
        interval(differences)["half_width"] if differences else None,
        t,
        wilcoxon,
    )


def paired_tests(differences: Sequence[float]) -> tuple[float | None, float | None]:
    """Two-sided p-values of Student's and Wilcoxon's test that the differences are centred at zero."""
    from scipy.stats import ttest_1samp, wilcoxon  # takes a second to import

    if len(differences) < 2:
        return None, None
    size = max(abs(one) for one in differences)
    varied = max(differences) - min(differences) > 1e-9 * size  # else only rounding varies
    t = float(ttest_1samp(differences, 0.0).pvalue) if varied else None
    signed = float(wilcoxon(differences).pvalue) if any(differences) else None
    return t, signed


def holm(values: Sequence[float | None]) -> list[float | None]:
    """Holm's step-down correction; a missing p-value stays missing and does not count."""
    order = sorted((p, place) for place, p in enumerate(values) if p is not None)
    corrected: list[float | None] = [None] * len(values)
    largest = 0.0
    for rank, (p, place) in enumerate(order):
        largest = max(largest, min(1.0, (len(order) - rank) * p))
        corrected[place] = largest
    return corrected
