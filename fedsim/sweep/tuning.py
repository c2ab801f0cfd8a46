"""Settles axes by a metric on validation data, so that every method is shown at its own best setting."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from fedsim.run.results import lower_is_better
from fedsim.sweep.collect import Row
from fedsim.sweep.pivot import Labels, groups, told


@dataclass(frozen=True)
class Choice:
    """What was settled for one cell of the other axes.

    Attributes:
        place: that cell.
        chosen: the settled labels; None where no run has measured the metric.
        value: the mean of the metric over seeds.
        candidates: how many there were.
        complete: did every run of every candidate end?
    """

    place: str
    chosen: str | None
    value: float | None
    candidates: int
    complete: bool


def settled(rows: Sequence[Row], axes: Sequence[str], by: str) -> tuple[list[Row], list[Choice]]:
    """The rows of the chosen settings without the settled axes, and what was chosen.

    The best mean over seeds wins, the first of equals; a setting with fewer seeds than another that ended
    stands behind it. Where nothing was measured the first setting stands in, so that it is seen as missing.

    Args:
        rows: of the whole sweep.
        axes: to be settled.
        by: the metric's path; losses and errors are lowest at their best.
    """
    if not axes:
        return list(rows), []
    others = [name for name in rows[0].axes if name not in axes] if rows else []
    kept: list[Row] = []
    choices = []
    for labels, part in groups(rows, others).items():
        candidates = groups(part, axes)
        best, value = _best(candidates, by)
        first = next(iter(candidates))
        axes_left = dict(zip(others, labels, strict=True))
        kept += [replace(row, axes=axes_left) for row in candidates[first if best is None else best]]
        chosen = None if best is None else told(axes, best)
        ended = all(row.ended for row in part)
        choices.append(Choice(told(others, labels), chosen, value, len(candidates), ended))
    return kept, choices


def _best(candidates: Mapping[Labels, Sequence[Row]], by: str) -> tuple[Labels | None, float | None]:
    sign = -1 if lower_is_better(by.partition(".")[0]) else 1
    found = {}
    for labels, rows in candidates.items():
        values = [row.metrics[by] for row in rows if row.ended and by in row.metrics]
        if values:
            found[labels] = (len(values), sign * fmean(values))
    if not found:
        return None, None
    best = max(found, key=lambda labels: found[labels])
    return best, sign * found[best][1]
