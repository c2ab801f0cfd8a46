"""The cells of run.py as a table and a picture; `python report.py cells.jsonl` prints what is there."""

import json
import math
import statistics
import sys
from pathlib import Path
from typing import Any

Cell = dict[str, Any]
COLOURS = ("#0072B2", "#D55E00")
COLUMNS = 3
UNITS = {  # of an attack's strength, by the first word of its name
    "prune": "share of all weights, or of a layer's units",
    "quantise": "bits",
    "fine-tune": "epochs",
    "hostile": "rounds",
    "rounding": "decimals",
    "noise": "deviation of the logarithms",
}
VERDICT = 1e-8  # alpha 0.01 over 10^6 keys


def table(cells: list[Cell]) -> str:
    """Means over seeds, and the largest p."""
    lines = [
        "model T seeds | train  val    test   | met    key z  largest p  marked | MI z   MI p<.01 | CPU s"
    ]
    embedded = [cell for cell in cells if cell["part"] == "embed"]
    for kind in dict.fromkeys(cell["model"] for cell in embedded):
        for sets in sorted({cell["sets"] for cell in embedded if cell["model"] == kind}):
            own = [cell for cell in embedded if (cell["model"], cell["sets"]) == (kind, sets)]
            lines.append(_row(kind, sets, own))
    attacked = [cell for cell in cells if cell["part"] == "attack"]
    if attacked:
        lines.append("\nattack and strength: test accuracy | key z, largest p, marked | MI z")
    for name in dict.fromkeys((cell["model"], cell["attack"], cell["strength"]) for cell in attacked):
        own = [cell for cell in attacked if (cell["model"], cell["attack"], cell["strength"]) == name]
        lines.append(_attack_row(name, own))
    return "\n".join(lines)


def _mean(own: list[Cell], name: str) -> float:
    values = [cell[name] for cell in own if cell.get(name) is not None]
    return statistics.fmean(values) if values else math.nan


def _row(kind: str, sets: int, own: list[Cell]) -> str:
    start = f"{kind:5} {sets or '-'} {len(own):5} | " + " ".join(
        f"{_mean(own, name):.4f}" for name in ("train", "val", "test")
    )
    if not sets:
        return f"{start} | {'':38} | {'':15} | {_mean(own, 'seconds'):.0f}"
    claimed = sum((cell.get("index_p") or 1.0) < 0.01 for cell in own)
    return (
        f"{start} | {_mean(own, 'met'):.4f} {_mean(own, 'key_z'):5.2f} {max(cell['p'] for cell in own):10.1e}"
        f"  {sum(cell['marked'] for cell in own)}/{len(own)}    | {_mean(own, 'index_z'):5.2f}  "
        f"{claimed}/{len(own)}     | {_mean(own, 'seconds'):.0f}"
    )


def _attack_row(name: tuple[str, str, float], own: list[Cell]) -> str:
    kind, attack, strength = name
    return (
        f"{kind:5} {attack:24} {strength:<5g} {_mean(own, 'test'):.4f} | {_mean(own, 'key_z'):6.2f} "
        f"{max(cell['p'] for cell in own):9.1e} {sum(cell['marked'] for cell in own)}/{len(own)} | "
        f"{_mean(own, 'index_z'):6.2f}"
    )


def draw(cells: list[Cell], path: Path, title: str) -> None:
    """-log10 p of the key and of the matching index against strength, a panel per attack."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    attacked = [cell for cell in cells if cell["part"] == "attack"]
    strengths: dict[str, set[float]] = {}
    for cell in attacked:
        strengths.setdefault(cell["attack"], set()).add(cell["strength"])
    if not strengths:
        return
    curves = [name for name, own in strengths.items() if len(own) > 1]
    points = [name for name in strengths if name not in curves]
    rows = math.ceil((len(curves) + bool(points)) / COLUMNS)
    figure = Figure(figsize=(3.5 * COLUMNS, 3.1 * rows), dpi=130, layout="constrained")
    FigureCanvasAgg(figure)
    panels = iter(figure.subplots(rows, COLUMNS, squeeze=False).flatten())
    for name in curves:
        axes = next(panels)
        places = {strength: strength for strength in sorted(strengths[name])}
        _panel(
            axes, [{**cell, "at": cell["strength"]} for cell in attacked if cell["attack"] == name], places
        )
        axes.set_title(name, fontsize=9)
        axes.set_xlabel(UNITS.get(name.split()[0], ""), fontsize=8)
    if points:
        axes = next(panels)
        places = {name: place for place, name in enumerate(points)}
        _panel(
            axes,
            [{**cell, "at": cell["attack"]} for cell in attacked if cell["attack"] in points],
            places,
            "o",
        )
        axes.set_xticks(list(places.values()), [name.replace(" with ", "\n") for name in points], fontsize=7)
        axes.set_title("a new model learns the answers", fontsize=9)
    for axes in panels:
        axes.set_visible(False)
    figure.get_axes()[0].legend(fontsize=7, loc="upper right")
    figure.suptitle(f"{title}: what removal leaves of the mark (dashed: the verdict's level)", fontsize=11)
    figure.savefig(path)


def _panel(axes: Any, cells: list[Cell], places: dict[Any, float], style: str = "o-") -> None:
    """Means over seeds, and the range, at the places of what a cell was measured `at`."""
    for field, colour, label in (
        ("p", COLOURS[0], "key (decides)"),
        ("index_p", COLOURS[1], "matching index"),
    ):
        lines = [
            [-math.log10(max(cell[field], 1e-300)) for cell in cells if cell["at"] == at and cell.get(field)]
            for at in places
        ]
        kept = [(place, line) for place, line in zip(places.values(), lines, strict=True) if line]
        if kept:
            where = [place for place, _ in kept]
            means, lows, highs = (
                [reduce(line) for _, line in kept] for reduce in (statistics.fmean, min, max)
            )
            axes.plot(where, means, style, color=colour, ms=3, label=label)
            axes.fill_between(where, lows, highs, color=colour, alpha=0.2, lw=0)
    axes.axhline(-math.log10(VERDICT), color="black", lw=0.8, ls="--")
    axes.set_ylabel("-log10 p", fontsize=8)
    axes.set_ylim(bottom=0)


if __name__ == "__main__":
    found = [json.loads(line) for line in Path(sys.argv[1]).read_text(encoding="utf-8").splitlines()]
    print(table(found))
    draw(found, Path(sys.argv[1]).with_name("robustness.png"), Path(sys.argv[1]).parent.name)
