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
Line = tuple[str, str, str, str]  # metric, label, colour, style

# Okabe and Ito's palette keeps its differences for colour-blind readers.
_SOURCES = (
    ("test", "global model on the server's test set", "#0072B2", "-"),
    ("client_test", "clients' own models on their test splits", "#D55E00", "-"),
    ("client_val", "clients' own models on their validation splits", "#CC79A7", ":"),
    ("train", "local training", "#009E73", "--"),
    ("clean_test", "the clean run's model on the server's test set", "#5f6368", ":"),
)
_SUCCESS: tuple[Line, ...] = (
    ("attack_success", "attack on the global model", "#000000", "-"),
    ("client_attack_success_benign", "attack on benign clients' own models", "#56B4E9", "-"),
    ("client_attack_success_malicious", "attack on malicious clients' own models", "#E69F00", "-"),
    ("attack_floor", "the same trigger on the clean run's model", "#5f6368", ":"),
)
_PANELS: Mapping[str, tuple[Line, ...]] = {
    panel: tuple((f"{source}_{panel}", label, colour, style) for source, label, colour, style in _SOURCES)
    for panel in ("accuracy", "loss")
} | {"attack success": _SUCCESS}
_LABELS = tuple(line[1] for line in (*_PANELS["accuracy"], *_SUCCESS))
_SHARES = ("accuracy", "attack success")
_BANDED = "client_test_"
GREY = "#5f6368"
SHADE = "#3c4043"


def draw_curves(runs: Runs, path: Path, title: str, window: tuple[int, int] | None = None) -> None:
    """Write a PNG with accuracy and loss over rounds, and the success of an attack where it was measured.

    One run: lines, and a band from the 10 % to the 90 % quantile of the clients. Several runs: the mean over
    seeds, and bands from the lowest to the highest seed.

    Args:
        runs: records of each seed.
        path: of the picture.
        title: above it.
        window: first and last round of an attack, to be shaded; None: as far as the records tell.
    """
    window = window or rounds_under_attack(runs)
    panels = [panel for panel in _PANELS if panel != "attack success" or _measured(runs, "attack_success")]
    figure = Figure(figsize=(5 * len(panels), 4.6), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    handles: dict[str, Artist] = {}
    for place, panel in enumerate(panels, start=1):
        axes = figure.add_subplot(1, len(panels), place)
        handles |= _draw_panel(axes, runs, panel) | shade(axes, window)
    figure.suptitle(title, fontsize=11, x=0.01, ha="left", fontweight="bold")
    if handles:
        order = [label for label in _LABELS if label in handles]
        order += [label for label in handles if label not in order]
        figure.legend(
            [handles[label] for label in order],
            order,
            loc="outside lower center",
            ncols=3,
            fontsize=8,
            frameon=False,
        )
    save(figure, path)


def save(figure: Figure, path: Path) -> None:
    """Write a PNG that is whole or absent."""
    temporary = path.with_name(f".{path.name}.partial.png")
    figure.savefig(temporary)
    temporary.replace(path)


def rounds_under_attack(runs: Runs) -> tuple[int, int] | None:
    """The first and the last round in which malicious clients took part; None where none did."""
    rounds = [record["round"] for records in runs for record in records if record.get("attack")]
    return (min(rounds), max(rounds)) if rounds else None


def shade(axes: Axes, window: tuple[int, int] | None) -> dict[str, Artist]:
    """Shade an attack's rounds, the last of them included; what was drawn, by its label."""
    if window is None:
        return {}
    return {"attack": axes.axvspan(window[0] - 0.5, window[1] + 0.5, color=SHADE, alpha=0.09, lw=0)}


def _measured(runs: Runs, metric: str) -> bool:
    return any(record["metrics"].get(metric) is not None for records in runs for record in records)


def _draw_panel(axes: Axes, runs: Runs, panel: str) -> dict[str, Artist]:
    """What was drawn, by its label."""
    handles: dict[str, Artist] = {}
    for metric, label, colour, style in _PANELS[panel]:
        rounds, values = series(runs, metric)
        if not len(rounds):
            continue
        marker = "o" if len(rounds) <= 15 else None
        (line,) = axes.plot(rounds, values.mean(axis=0), style, color=colour, lw=1.8, marker=marker, ms=3.5)
        handles[label] = line
        if len(runs) > 1:
            low, high, band = values.min(axis=0), values.max(axis=0), "range over seeds"
        elif metric.startswith(_BANDED):
            (low, high), band = _span(runs[0], metric, rounds), "80 % of the clients"
        else:
            continue
        if len(low):
            drawn = axes.fill_between(rounds, low, high, color=colour, alpha=0.13, lw=0)
            handles.setdefault(band, drawn)
    style_axes(axes, panel, share=panel in _SHARES)
    return handles


def style_axes(axes: Axes, title: str, *, share: bool) -> None:
    """Rounds to the right, a quiet grid; a share goes from 0 to 1."""
    if share:
        axes.set_ylim(0, 1.02)
    axes.set_title(title, fontsize=10, color=GREY, loc="left")
    axes.set_xlabel("round", color=GREY)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(axis="y", color="#e3e5e8", lw=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color("#b8bcc2")
    axes.tick_params(colors=GREY, labelsize=9)


def series(runs: Runs, name: str) -> tuple[np.ndarray, np.ndarray]:
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
