"""Rows of a sweep as tables: mean and 95 % interval over seeds, with what failed or is missing in sight."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedsim.run.summary import interval
from fedsim.sweep.collect import Row
from fedsim.sweep.matched import not_implanted

Labels = tuple[str, ...]


@dataclass(frozen=True)
class Entry:
    """One metric of one cell over seeds.

    Attributes:
        values: by seed, of the runs that measured it.
        seeds: of the sweep.
        ended, failed: how many of its runs did; the others were not played.
        not_implanted: how many of the ended are left out, see `fedsim.sweep.matched`.
    """

    values: Mapping[int, float]
    seeds: int
    ended: int
    failed: int
    not_implanted: int = 0

    @property
    def statistic(self) -> dict[str, Any] | None:
        """Mean and intervals, see `fedsim.run.summary.interval`; None without values."""
        return interval(list(self.values.values())) if self.values else None

    @property
    def empty(self) -> bool:
        """Did every run end, and none measure the metric?"""
        return not self.values and self.ended == self.seeds and not self.not_implanted

    @property
    def text(self) -> str:
        """`0.931 ± 0.004`, then what is not there, such as `(2 of 3, 1 failed)`."""
        found = self.statistic
        if found is None:
            if self.failed:
                return "failed"
            if self.not_implanted:
                return "not implanted"
            return "-" if self.ended else "missing"
        half = found["half_width"]
        text = _number(found["mean"]) + ("" if half is None else f" ± {_number(half)}")
        if found["n"] == self.seeds:
            return text
        lost = f", {self.failed} failed" if self.failed else ""
        weak = f", {self.not_implanted} not implanted" if self.not_implanted else ""
        return f"{text} ({found['n']} of {self.seeds}{lost}{weak})"


def _number(value: float) -> str:
    return f"{value:.3f}" if abs(value) < 10 else f"{value:.4g}"


@dataclass(frozen=True)
class Pivot:
    """A table.

    Attributes:
        title: metric, and the values of the axes that are neither rows nor columns.
        metric: its path; None where the columns are metrics.
        corner: names of the axes.
        rows, columns: labels.
        entries: by row and column.
    """

    title: str
    metric: str | None
    corner: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    entries: Mapping[tuple[str, str], Entry]


def entry(rows: Sequence[Row], metric: str) -> Entry:
    """One metric of the runs of one cell."""
    having = [row for row in rows if row.ended and metric in row.metrics]
    counted = [row for row in having if not not_implanted(row, metric)]
    return Entry(
        {row.seed: row.metrics[metric] for row in counted},
        seeds=len({row.seed for row in rows}),
        ended=sum(row.ended for row in rows),
        failed=sum(row.status == "failed" for row in rows),
        not_implanted=len(having) - len(counted),
    )


def groups(rows: Sequence[Row], axes: Sequence[str]) -> dict[Labels, list[Row]]:
    """The rows by their labels on some axes, in the order of first appearance."""
    found: dict[Labels, list[Row]] = {}
    for row in rows:
        found.setdefault(tuple(row.axes[axis] for axis in axes), []).append(row)
    return found


def told(axes: Sequence[str], labels: Labels) -> str:
    """`rounds=30, model=cnn`."""
    return ", ".join(f"{axis}={label}" for axis, label in zip(axes, labels, strict=True))


def pivots(
    rows: Sequence[Row], down: Sequence[str], across: Sequence[str], metrics: Sequence[str]
) -> list[Pivot]:
    """All tables: one per metric, or one with the metrics as columns where `across` is empty.

    Rows and columns that could not measure a metric, such as an untargeted attack its success, are left out;
    those that failed or are missing are not.

    Args:
        rows: of the whole sweep.
        down: axes of the tables' rows.
        across: axes of their columns.
        metrics: paths.
    """
    names = list(rows[0].axes) if rows else []
    rest = [name for name in names if name not in (*down, *across)]
    tables = []
    for labels, part in groups(rows, rest).items():
        place = told(rest, labels)
        if across:
            tables += [_crossed(place, part, down, across, metric) for metric in metrics]
        elif metrics:
            tables.append(_listed(place, part, down, metrics))
    return tables


def _joined(labels: Labels) -> str:
    return " / ".join(labels)


def _crossed(
    place: str, rows: Sequence[Row], down: Sequence[str], across: Sequence[str], metric: str
) -> Pivot:
    cells = groups(rows, [*down, *across])
    entries = {
        (_joined(key[: len(down)]), _joined(key[len(down) :])): entry(part, metric)
        for key, part in cells.items()
    }
    corner = f"{_joined(tuple(down))} \\ {_joined(tuple(across))}"
    title = f"{metric}, {place}" if place else metric
    lines, columns = (_telling(entries, side) for side in (0, 1))
    return Pivot(title, metric, corner, lines, columns, entries)


def _telling(entries: Mapping[tuple[str, str], Entry], side: int) -> tuple[str, ...]:
    """Labels of the rows (side 0) or columns (1) that tell more than that nothing was measured."""
    labels = dict.fromkeys(key[side] for key in entries)
    telling = {key[side] for key, one in entries.items() if not one.empty}
    return tuple(label for label in labels if label in telling) or tuple(labels)


def _listed(place: str, rows: Sequence[Row], down: Sequence[str], metrics: Sequence[str]) -> Pivot:
    entries = {
        (_joined(key), metric): entry(part, metric)
        for key, part in groups(rows, down).items()
        for metric in metrics
    }
    lines = tuple(dict.fromkeys(row for row, _ in entries))
    return Pivot(place, None, _joined(tuple(down)), lines, tuple(metrics), entries)
