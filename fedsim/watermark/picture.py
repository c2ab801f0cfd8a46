"""The nulls of both statistics as a picture, with what was observed."""

from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from fedsim.watermark.statistics import KeyMatch, MatchingIndex
from fedsim.watermark.verification import Verdict

_NULL, _OBSERVED = "#0072B2", "#D55E00"


def draw_nulls(verdict: Verdict, path: Path) -> None:
    """Write a PNG: matches with the key beside re-drawn keys, and the matching index beside other sets."""
    panels = 1 if verdict.index is None else 2
    figure = Figure(figsize=(5.2 * panels, 3.8), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    _key_panel(figure.add_subplot(1, panels, 1), verdict.match, verdict.level.threshold)
    if verdict.index is not None:
        _index_panel(figure.add_subplot(1, panels, 2), verdict.index)
    word = "carries the mark" if verdict.marked else "no mark proven"
    figure.suptitle(f"{verdict.key.owner}, {verdict.key.date}: {word}", fontsize=11, fontweight="bold")
    temporary = path.with_name(f".{path.name}.partial.png")
    figure.savefig(temporary)
    temporary.replace(path)


def _key_panel(axes: Axes, match: KeyMatch, threshold: float) -> None:
    reach = np.linspace(-6, 6, 400)
    if match.deviation:
        values = match.mean + reach * match.deviation
        axes.fill_between(values, np.exp(-(reach**2) / 2), color=_NULL, alpha=0.4, lw=0)
    axes.axvline(match.matches, color=_OBSERVED, lw=2)
    axes.set_title(f"decides: p = {match.p:.2g} (asked: {threshold:.2g})", fontsize=10)
    axes.set_xlabel(f"matches with the key, of {match.positions}\n(blue: keys drawn anew, as a normal)")
    axes.set_yticks([])


def _index_panel(axes: Axes, index: MatchingIndex) -> None:
    low, high = int(index.null.min()), int(index.null.max())
    step = max(1, (high - low + 1) // 25)  # whole numbers, so that no bar stands for more of them
    edges = [edge - 0.5 for edge in range(low, high + step + 1, step)]
    axes.hist(index.null.numpy(), bins=edges, color=_NULL, alpha=0.6)
    axes.axvline(index.index, color=_OBSERVED, lw=2)
    axes.set_title(f"beside it: MI z = {index.z:.2f}, rank p = {index.rank_p:.3g}", fontsize=10)
    axes.set_xlabel(f"matching index\n(blue: {len(index.null)} tuples of other sets)")
    axes.set_ylabel("tuples")
