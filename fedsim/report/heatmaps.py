"""A table of numbers as colours, with the numbers in it."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import Normalize
from matplotlib.figure import Figure

from fedsim.report.curves import GREY, save

_WIDE, _HIGH = 0.95, 0.5  # inches per column and row
_NOISE = -0.05  # a share less its floor may fall so far below zero
_MAP = "cividis"  # perceptually even, and readable by the colour-blind


def draw_heatmap(
    values: np.ndarray,
    texts: Sequence[Sequence[str]],
    rows: Sequence[str],
    columns: Sequence[str],
    path: Path,
    *,
    title: str,
    axes_names: tuple[str, str] = ("", ""),
) -> None:
    """Write a PNG: one square per cell, its colour the value, its text beside it.

    Shares are coloured from 0 to 1, other values over their own range. A cell without a value is hatched.

    Args:
        values: [r, c], NaN where there is none.
        texts: [r, c], written into the cells.
        rows: their labels.
        columns: their labels.
        path: of the picture.
        title: above it.
        axes_names: of rows and columns.
    """
    values = np.asarray(values, dtype=np.float64)
    label_space = 0.085 * max(len(label) for label in rows) + 1.0
    size = (label_space + _WIDE * len(columns) + 1.2, 1.7 + _HIGH * len(rows))
    figure = Figure(figsize=(max(4.0, size[0]), size[1]), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.set_facecolor("#f1f3f4")
    norm = _range(values)
    image = axes.imshow(np.ma.masked_invalid(values), cmap=_MAP, norm=norm, aspect="auto")
    _write(axes, values, texts, norm)
    _label(axes, rows, columns, axes_names)
    axes.set_title(title, fontsize=11, loc="left", fontweight="bold", pad=10)
    bar = figure.colorbar(image, ax=axes, fraction=0.04, pad=0.02)
    bar.outline.set_visible(False)
    bar.ax.tick_params(labelsize=8, colors=GREY)
    save(figure, path)


def _range(values: np.ndarray) -> Normalize:
    found = values[np.isfinite(values)]
    if not len(found) or (found.min() >= _NOISE and found.max() <= 1):
        return Normalize(0.0, 1.0)
    low, high = float(found.min()), float(found.max())
    if low < 0:  # a change: no change lies in the middle
        return Normalize(-max(-low, high), max(-low, high))
    return Normalize(low, high if high > low else low + 1.0)


def _write(axes: Axes, values: np.ndarray, texts: Sequence[Sequence[str]], norm: Normalize) -> None:
    colours = colormaps[_MAP]
    for row, line in enumerate(texts):
        for column, text in enumerate(line):
            value = values[row, column]
            dark = bool(np.isfinite(value)) and _luminance(colours(norm(value))) < 0.45
            axes.text(
                column,
                row,
                text,
                ha="center",
                va="center",
                fontsize=7.5,
                color="white" if dark else "#202124",
            )
            if not np.isfinite(value):
                axes.axhspan(
                    row - 0.5, row + 0.5, column / len(line), (column + 1) / len(line), hatch="///",
                    facecolor="none", edgecolor="#d0d4d9", lw=0, zorder=0.5,
                )  # fmt: skip


def _luminance(colour: Sequence[float]) -> float:
    red, green, blue = colour[:3]
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def _label(axes: Axes, rows: Sequence[str], columns: Sequence[str], names: tuple[str, str]) -> None:
    turned = max(len(label) for label in columns) > 11
    axes.set_xticks(
        range(len(columns)), columns, rotation=35 if turned else 0, ha="right" if turned else "center"
    )
    axes.set_yticks(range(len(rows)), rows)
    axes.tick_params(length=0, labelsize=9, colors="#202124")
    axes.set_ylabel(names[0], color=GREY)
    axes.set_xlabel(names[1], color=GREY)
    axes.set_xticks(np.arange(len(columns) + 1) - 0.5, minor=True)
    axes.set_yticks(np.arange(len(rows) + 1) - 0.5, minor=True)
    axes.grid(which="minor", color="white", lw=2)
    axes.tick_params(which="minor", length=0)
    axes.spines[:].set_visible(False)
