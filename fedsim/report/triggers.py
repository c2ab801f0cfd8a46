"""What a trigger looks like on real samples, and how much of an update lies where an attack wants it."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from torch import Tensor

from fedsim.report.curves import GREY, save, shade, style_axes

_MOST = 8  # samples in a picture
_AMPLIFIED = "difference"


def draw_triggers(
    images: Tensor, triggered: Sequence[tuple[str, Tensor]], path: Path, title: str = ""
) -> None:
    """Write a PNG: a column per sample; its rows the sample, then each triggered version and its difference.

    The difference is drawn around middle grey and scaled to its largest value, which stands beside it.

    Args:
        images: [n, channels, height, width] or [n, height, width], in [0, 1]; eight at most are shown.
        triggered: (label, images of the same shape), such as before and after the trigger was optimised.
        path: of the picture.
        title: above it.

    Raises:
        ValueError: shapes differ.
    """
    clean = _pictures(images)
    rows: list[tuple[str, np.ndarray]] = [("sample", clean)]
    for label, changed in triggered:
        if changed.shape != images.shape:
            raise ValueError(f"{label}: shape {tuple(changed.shape)}, wanted {tuple(images.shape)}.")
        dirty = _pictures(changed)
        rows += [(label, dirty), _difference(dirty - clean)]
    figure = Figure(figsize=(1.6 + 1.15 * len(clean), 0.6 + 1.2 * len(rows)), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    for line, (label, pictures) in enumerate(rows):
        for column, picture in enumerate(pictures):
            axes = figure.add_subplot(len(rows), len(clean), line * len(clean) + column + 1)
            _show(axes, picture, label if column == 0 else "")
    figure.suptitle(title, fontsize=11, x=0.01, ha="left", fontweight="bold")
    save(figure, path)


def _pictures(images: Tensor) -> np.ndarray:
    """[n, height, width, channels] in [0, 1], n at most eight."""
    found = images[:_MOST].detach().double().cpu().numpy()
    pictures: np.ndarray = found[..., None] if found.ndim == 3 else np.moveaxis(found, 1, -1)
    return pictures


def _difference(change: np.ndarray) -> tuple[str, np.ndarray]:
    largest = float(np.abs(change).max())
    scaled = 0.5 + change / (2 * largest) if largest else np.full_like(change, 0.5)
    return f"{_AMPLIFIED}\n(± {largest:.2g})", scaled


def _show(axes: Axes, picture: np.ndarray, label: str) -> None:
    single = picture.shape[-1] == 1
    axes.imshow(
        np.clip(picture[..., 0] if single else picture[..., :3], 0, 1),
        cmap="gray" if single else None,
        vmin=0,
        vmax=1,
        interpolation="nearest",
    )
    axes.set_xticks([])
    axes.set_yticks([])
    axes.spines[:].set_color("#b8bcc2")
    axes.set_ylabel(label, fontsize=8, color=GREY, rotation=0, ha="right", va="center")


def share_inside(delta: Tensor, mask: Tensor) -> tuple[float, float]:
    """(share of the sum of |delta|, share of the sum of delta^2) inside a set of coordinates.

    Args:
        delta: [d], an update.
        mask: [d] bool, the set V.

    Raises:
        ValueError: the update is zero, so that it lies nowhere.
    """
    values = delta.detach().double().abs()
    if not bool(values.any()):
        raise ValueError("The update is zero everywhere; it has no share inside V.")
    inside = values[mask]
    one = float(inside.sum() / values.sum())
    return one, float(inside.square().sum() / values.square().sum())


def draw_shares(
    shares: Sequence[tuple[str, Sequence[int], Sequence[float]]],
    path: Path,
    *,
    title: str = "",
    size: float | None = None,
    window: tuple[int, int] | None = None,
) -> None:
    """Write a PNG of the share of |delta| inside V against the round.

    Args:
        shares: (label, rounds, shares), a line each.
        path: of the picture.
        title: above it.
        size: |V| / d, what an update without preference would have there; None: not drawn.
        window: first and last round of the attack, to be shaded.
    """
    figure = Figure(figsize=(6.5, 4.0), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    handles = dict(shade(axes, window))
    for label, rounds, values in shares:
        (handles[label],) = axes.plot(
            rounds, values, lw=1.6, marker="o" if len(rounds) <= 15 else None, ms=3.5
        )
    if size is not None:
        handles["|V| / d"] = axes.axhline(size, ls=":", color=GREY)
    style_axes(axes, "share of |delta| inside V", share=True)
    figure.suptitle(title, fontsize=11, x=0.01, ha="left", fontweight="bold")
    figure.legend(
        list(handles.values()), list(handles), loc="outside lower center", ncols=3, fontsize=8, frameon=False
    )
    save(figure, path)
