"""One metric against rounds for several settings: a panel each, a line per variant, intervals over seeds."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from fedsim.report.curves import GREY, Runs, save, series, shade, style_axes
from fedsim.run.results import lower_is_better
from fedsim.run.summary import interval

_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_STYLES = ("-", "--", ":", "-.")
_ACROSS = 4  # panels side by side


@dataclass(frozen=True)
class Panel:
    """One setting.

    Attributes:
        title: above the panel.
        lines: records of all seeds by variant.
        window: first and last round of the attack; None: no attack.
        floor: a metric drawn as one dotted line, the mean of all variants that measured it; None: none.
    """

    title: str
    lines: Mapping[str, Runs]
    window: tuple[int, int] | None
    floor: str | None = None


def draw_compared(panels: Sequence[Panel], metric: str, path: Path, title: str) -> None:
    """Write a PNG: lines are means over seeds, bands the 95 % intervals of those means by Student's t.

    Args:
        panels: at least one.
        metric: name in the records' `metrics`.
        path: of the picture.
        title: above it.
    """
    across = min(_ACROSS, len(panels))
    down = ceil(len(panels) / across)
    figure = Figure(figsize=(max(6.5, 3.6 * across), 2.9 * down + 1.1), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    order = list(dict.fromkeys(label for panel in panels for label in panel.lines))
    handles: dict[str, Artist] = {}
    for place, panel in enumerate(panels, start=1):
        axes = figure.add_subplot(down, across, place)
        handles |= _draw_panel(axes, panel, metric, order)
    figure.suptitle(title, fontsize=11, x=0.01, ha="left", fontweight="bold")
    labels = [label for label in (*order, *handles) if label in handles]
    labels = list(dict.fromkeys(labels))
    figure.legend(
        [handles[label] for label in labels],
        labels,
        loc="outside lower center",
        ncols=min(len(labels), 6),
        fontsize=8,
        frameon=False,
    )
    save(figure, path)


def _draw_panel(axes: Axes, panel: Panel, metric: str, order: Sequence[str]) -> dict[str, Artist]:
    handles = dict(shade(axes, panel.window))
    found = {label: series(runs, metric) for label, runs in panel.lines.items()}
    every = [values for _, values in found.values() if values.size]
    lowest, highest = (min(v.min() for v in every), max(v.max() for v in every)) if every else (0.0, 1.0)
    share = bool(not lower_is_better(metric) and lowest >= 0 and highest <= 1)
    frame = (0.0, 1.0) if share else _padded(lowest, highest)
    for label, (rounds, values) in found.items():
        number = order.index(label)
        colour, style = _COLOURS[number % len(_COLOURS)], _STYLES[number // len(_COLOURS) % len(_STYLES)]
        if not len(rounds):
            continue
        (handles[label],) = axes.plot(rounds, values.mean(axis=0), style, color=colour, lw=1.6)
        if len(values) > 1:
            half = np.array([interval(column.tolist())["half_width"] for column in values.T])
            # Of two seeds an interval is 13 deviations wide: it is cut where the seeds themselves end.
            low, high = (np.clip(values.mean(axis=0) + side * half, *frame) for side in (-1, 1))
            axes.fill_between(rounds, low, high, color=colour, alpha=0.13, lw=0)
    if panel.floor is not None and (floor := _floor(panel)) is not None:
        label = panel.floor.replace("_", " ")
        (handles[label],) = axes.plot(*floor, ":", color=GREY, lw=1.4)
    if not share and every:
        axes.set_ylim(*frame)
    style_axes(axes, panel.title, share=share)
    return handles


def _padded(low: float, high: float) -> tuple[float, float]:
    """A little more than the range, which may be a single value."""
    margin = 0.05 * (high - low) or 0.05 * abs(high) or 0.05
    return low - margin, high + margin


def _floor(panel: Panel) -> tuple[np.ndarray, np.ndarray] | None:
    """(rounds, mean) of the floor over all variants and seeds of a panel."""
    records = [records for runs in panel.lines.values() for records in runs]
    having = [one for one in records if any(r["metrics"].get(panel.floor) is not None for r in one)]
    if not having or panel.floor is None:
        return None
    rounds, values = series(having, panel.floor)
    return (rounds, values.mean(axis=0)) if len(rounds) else None
