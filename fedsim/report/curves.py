"""Metrics over rounds as a picture, for one seed or several."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

Record = Mapping[str, Any]
Runs = Sequence[Sequence[Record]]

# Okabe and Ito's palette keeps its differences for colour-blind readers.
_LINES = (
    ("test", "global model on the server's test set", "#0072B2", "-"),
    ("client_test", "clients' own models on their test splits", "#D55E00", "-"),
    ("client_val", "clients' own models on their validation splits", "#CC79A7", ":"),
    ("train", "local training", "#009E73", "--"),
)
_PANELS = ("accuracy", "loss")
_BANDED = "client_test"
_GREY = "#5f6368"


def draw_curves(runs: Runs, path: Path, title: str) -> None:
    """Write a PNG with accuracy and loss over rounds.

    One run: lines, and a band from the 10 % to the 90 % quantile of the clients. Several runs: the mean over
    seeds, and bands from the lowest to the highest seed.

    Args:
        runs: records of each seed.
        path: of the picture.
        title: above it.
    """
    figure = Figure(figsize=(10, 4.6), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    handles: dict[str, Artist] = {}
    for place, panel in enumerate(_PANELS, start=1):
        handles |= _draw_panel(figure.add_subplot(1, 2, place), runs, panel)
    figure.suptitle(title, fontsize=11, x=0.01, ha="left", fontweight="bold")
    if handles:
        order = [label for _, label, _, _ in _LINES if label in handles]
        order += [label for label in handles if label not in order]
        figure.legend(
            [handles[label] for label in order],
            order,
            loc="outside lower center",
            ncols=3,
            fontsize=8,
            frameon=False,
        )
    temporary = path.with_name(f".{path.name}.partial.png")
    figure.savefig(temporary)
    temporary.replace(path)


def _draw_panel(axes: Axes, runs: Runs, panel: str) -> dict[str, Artist]:
    """What was drawn, by its label."""
    handles: dict[str, Artist] = {}
    for source, label, colour, style in _LINES:
        rounds, values = _series(runs, f"{source}_{panel}")
        if not len(rounds):
            continue
        marker = "o" if len(rounds) <= 15 else None
        (line,) = axes.plot(rounds, values.mean(axis=0), style, color=colour, lw=1.8, marker=marker, ms=3.5)
        handles[label] = line
        if len(runs) > 1:
            low, high, band = values.min(axis=0), values.max(axis=0), "range over seeds"
        elif source == _BANDED:
            (low, high), band = _span(runs[0], f"{source}_{panel}", rounds), "80 % of the clients"
        else:
            continue
        if len(low):
            drawn = axes.fill_between(rounds, low, high, color=colour, alpha=0.13, lw=0)
            handles.setdefault(band, drawn)
    _style(axes, panel)
    return handles


def _style(axes: Axes, panel: str) -> None:
    if panel == "accuracy":
        axes.set_ylim(0, 1.02)
    axes.set_title(panel, fontsize=10, color=_GREY, loc="left")
    axes.set_xlabel("round", color=_GREY)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(axis="y", color="#e3e5e8", lw=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color("#b8bcc2")
    axes.tick_params(colors=_GREY, labelsize=9)


def _series(runs: Runs, name: str) -> tuple[np.ndarray, np.ndarray]:
    """(rounds [r], values [runs, r]) where all runs have measured the metric."""
    points = [
        {r["round"]: r["metrics"][name] for r in records if r["metrics"].get(name) is not None}
        for records in runs
    ]
    common = sorted(set.intersection(*(set(one) for one in points))) if points else []
    values = np.array([[one[round_] for round_ in common] for one in points], dtype=np.float64)
    return np.array(common), values


def _span(records: Sequence[Record], name: str, rounds: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """10 % and 90 % quantile over clients, or nothing where the metric is not one of clients."""
    spreads = {r["round"]: r.get("clients", {}).get(name) for r in records}
    chosen = [spreads[int(round_)] for round_ in rounds]
    if not all(spread and spread["quantiles"] for spread in chosen):
        return np.array([]), np.array([])
    low, high = ([spread["quantiles"][level] for spread in chosen if spread] for level in ("0.1", "0.9"))
    return np.array(low), np.array(high)
