"""The cells of run.py as a table and a picture; `python report.py cells.jsonl` prints what is there."""

import json
import math
import statistics
import sys
from pathlib import Path
from typing import Any

Cell = dict[str, Any]
COLOURS = ("#0072B2", "#D55E00", "#009E73")
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
    """p and the matching index's z against strength, a panel per attack."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    attacked = [cell for cell in cells if cell["part"] == "attack"]
    names = list(dict.fromkeys(cell["attack"] for cell in attacked))
    if not names:
        return
    rows = math.ceil(len(names) / 4)
    figure = Figure(figsize=(14, 3.1 * rows), dpi=130, layout="constrained")
    FigureCanvasAgg(figure)
    kinds = list(dict.fromkeys(cell["model"] for cell in attacked))
    for place, name in enumerate(names, start=1):
        axes = figure.add_subplot(rows, 4, place)
        for kind, colour in zip(kinds, COLOURS, strict=False):
            own = [c for c in attacked if c["attack"] == name and c["model"] == kind]
            strengths = sorted({c["strength"] for c in own})
            lines = [[-math.log10(max(c["p"], 1e-300)) for c in own if c["strength"] == s] for s in strengths]
            means, lows, highs = ([reduce(one) for one in lines] for reduce in (statistics.fmean, min, max))
            axes.plot(strengths, means, "o-", color=colour, ms=3, label=kind)
            axes.fill_between(strengths, lows, highs, color=colour, alpha=0.2)
        axes.axhline(-math.log10(VERDICT), color="black", lw=0.8, ls="--")
        axes.set_title(name, fontsize=9)
        axes.set_ylabel("-log10 p of the key", fontsize=8)
        axes.set_ylim(bottom=0)
    figure.get_axes()[0].legend(fontsize=8)
    figure.suptitle(f"{title}: what removal leaves of the mark (dashed: the verdict's level)", fontsize=11)
    figure.savefig(path)


if __name__ == "__main__":
    found = [json.loads(line) for line in Path(sys.argv[1]).read_text(encoding="utf-8").splitlines()]
    print(table(found))
    draw(found, Path(sys.argv[1]).with_name("robustness.png"), Path(sys.argv[1]).parent.name)
