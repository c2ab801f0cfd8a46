"""Milliseconds a round against clients and against parameters, ours and peers'."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

AXES = {"clients": "clients in a round (W1's model)", "parameters": "parameters (20 clients, one step each)"}


def draw(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Two panels, both axes logarithmic; the best place of each tier."""
    figure = Figure(figsize=(11, 4.5), layout="constrained")
    for axes, (key, words) in zip(figure.subplots(1, 2), AXES.items(), strict=True):
        lines = series(rows, key)
        for name, points in lines.items():
            axes.plot(*zip(*points, strict=True), marker="o", label=name)
        axes.set(xscale="log", yscale="log", xlabel=words, ylabel="milliseconds a round")
        axes.grid(visible=True, which="both", alpha=0.25)
        if lines:
            axes.legend()
    figure.savefig(path, dpi=130)


def series(rows: Sequence[Mapping[str, Any]], key: str) -> dict[str, list[tuple[int, float]]]:
    """(size, median ms) of each system in the order of sizes; of several places the fastest."""
    best: dict[str, dict[int, float]] = {}
    for row in rows:
        if key in row and "missing" not in row:
            name = f"fedsim {row['tier']}" if row["tier"] else row["label"]
            known = best.setdefault(name, {})
            known[row[key]] = min(known.get(row[key], float("inf")), row["ms_per_round"]["median"])
    return {name: sorted(points.items()) for name, points in best.items()}
