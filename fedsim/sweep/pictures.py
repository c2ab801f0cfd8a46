"""The pictures of a sweep: a heat map per metric and table, and curves for the chosen axes."""

import re
from collections.abc import Mapping, Sequence
from math import nan
from pathlib import Path

import numpy as np

from fedsim.report.compared_curves import Panel, draw_compared
from fedsim.report.heatmaps import draw_heatmap
from fedsim.sweep.cells import Cell
from fedsim.sweep.collect import Row, records_of
from fedsim.sweep.file import Sweep
from fedsim.sweep.output import shown, tables_of
from fedsim.sweep.pivot import Pivot, groups, told

CURVES = ("attack_success", "test_accuracy", "client_test_accuracy")
"""Drawn against rounds: the first of these that any run has measured."""


def draw_heatmaps(out: Path, sweep: Sweep, rows: Sequence[Row]) -> list[Path]:
    """A picture for each table of rows and columns that holds a number."""
    drawn = []
    for pivot in tables_of(sweep, rows):
        measured = any(entry.values for entry in pivot.entries.values())
        if pivot.metric is not None and measured:
            drawn.append(out / f"heatmap-{_file_name(pivot.title)}.png")
            _draw_heatmap(pivot, drawn[-1], sweep)
    return drawn


def _draw_heatmap(pivot: Pivot, path: Path, sweep: Sweep) -> None:
    values, texts = [], []
    for row in pivot.rows:
        entries = [pivot.entries.get((row, column)) for column in pivot.columns]
        means = [entry.statistic["mean"] if entry and entry.statistic else nan for entry in entries]
        values.append(means)
        texts.append(["" if entry is None else entry.text.replace(" (", "\n(") for entry in entries])
    texts = [[text.replace(" ± ", "\n± ") for text in line] for line in texts]
    names = (" / ".join(sweep.report.rows or ()), " / ".join(sweep.report.columns or ()))
    draw_heatmap(
        np.array(values), texts, pivot.rows, pivot.columns, path, title=pivot.title, axes_names=names
    )


def draw_sweep_curves(out: Path, sweep: Sweep, cells: Sequence[Cell], rows: Sequence[Row]) -> list[Path]:
    """A picture for each axis of the report's `curves`: its values are lines, all else panels."""
    ended = [row for row in shown(sweep, rows)[0] if row.ended]
    metric = sweep.report.curve or _measured(ended)
    if metric is None:
        return []
    records = {row.folder: records_of(out, row) for row in ended}
    windows = {cell.experiment.digest(): _window(cell) for cell in cells}
    drawn = []
    for axis in sweep.report.curves or ():
        panels = _panels(axis, metric, ended, records, windows)
        if panels:
            drawn.append(out / f"curves-{_file_name(axis)}.png")
            title = f"{sweep.name}: {metric.replace('_', ' ')}, mean and 95 % interval over seeds"
            draw_compared(panels, metric, drawn[-1], title)
    return drawn


def _measured(rows: Sequence[Row]) -> str | None:
    return next((name for name in CURVES if any(f"{name}.last" in row.metrics for row in rows)), None)


def _panels(
    axis: str,
    metric: str,
    rows: Sequence[Row],
    records: Mapping[str, Sequence[Mapping[str, object]]],
    windows: Mapping[str, tuple[int, int] | None],
) -> list[Panel]:
    """A panel for each combination of the other axes in which the metric was measured."""
    others = [name for name in rows[0].axes if name != axis]
    panels = []
    for labels, part in groups(rows, others).items():
        lines, window = {}, None
        for (label,), runs in groups(part, [axis]).items():
            having = [row for row in runs if f"{metric}.last" in row.metrics]
            if having:
                lines[label] = [records[row.folder] for row in having]
                window = window or windows[having[0].digest]
        if lines:
            floor = "attack_floor" if metric == "attack_success" else None
            panels.append(Panel(told(others, labels) or axis, lines, window, floor))
    return panels


def _window(cell: Cell) -> tuple[int, int] | None:
    attack = cell.experiment.attack
    return None if attack is None else attack.window or (1, cell.experiment.rounds)


def _file_name(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-.")
