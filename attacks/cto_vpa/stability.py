"""Stage A: the parameters that are vulnerable and stable under aggregation, from the global model's drift.

For filter j of a convolution, or output unit j of a linear layer, with R models observed one round apart:

    a_j(t) = mean |W_j(t)|        D_j(t) = a_j(t + 1) - a_j(t)
    s_j = |a_j(last)| Var_t(D_j) / (max_t a_j - min_t a_j + 1e-10)

V is the share rho of the units of every layer with the largest score. The variance is the population's. A
bias belongs to its unit. Parameters of other shapes, such as those of BatchNorm, are in no V, nor are
buffers. Everything is kept as running moments, so that memory does not grow with R.

Shapes: d values of the shared model, u units over all layers.
"""

from collections.abc import Iterable, Sequence
from math import prod
from typing import NamedTuple

import torch
from torch import Tensor

from fedsim.contracts import Tensors, Vector
from fedsim.errors import RoundError
from fedsim.params import Layout

SPREAD = 1e-10  # in units of the weights: a filter that never moved has a score of 0, not 0 / 0


class Layer(NamedTuple):
    """A weight matrix or a bank of filters inside the flat vector.

    Attributes:
        name: of the weight.
        start: of the weight in the vector.
        units: rows of the weight.
        width: values in one row.
        bias: start of the bias in the vector, or None.
    """

    name: str
    start: int
    units: int
    width: int
    bias: int | None


def layers(layout: Layout, trained: Iterable[str]) -> tuple[Layer, ...]:
    """The layers among the trained tensors, in the order of the vector."""
    trained = frozenset(trained)
    starts, at = {}, 0
    for name, shape, _ in layout.floats:
        starts[name] = (at, shape)
        at += prod(shape)
    found = []
    for name, (start, shape) in starts.items():
        if len(shape) < 2 or name not in trained:
            continue
        bias = name.removesuffix("weight") + "bias"
        own = starts.get(bias) if name.endswith("weight") and bias in trained else None
        fits = own is not None and own[1] == shape[:1]
        found.append(Layer(name, start, shape[0], prod(shape[1:]), own[0] if own and fits else None))
    return tuple(found)


def magnitudes(model: Vector, parts: Sequence[Layer]) -> Vector:
    """[u] float64: a_j, the mean absolute weight of every unit."""
    means = [
        model[one.start : one.start + one.units * one.width]
        .view(one.units, one.width)
        .abs()
        .mean(dim=1, dtype=torch.float64)
        for one in parts
    ]
    return torch.cat(means)


def watched(moments: Tensors, a: Vector) -> dict[str, Tensor]:
    """The moments after one more model.

    Args:
        moments: of the models before it; empty before the first.
        a: [u] float64, its magnitudes.

    Returns:
        `count` of models, `last`, `low`, `high` of a ([u]), `mean` and `square` ([u]): of the differences D,
        their mean and the sum of squared deviations from it (Welford).
    """
    if not moments:
        zero = torch.zeros_like(a)
        return {"count": torch.ones(()), "last": a, "low": a, "high": a, "mean": zero, "square": zero}
    count, difference = moments["count"], a - moments["last"]  # `count` differences, this one included
    away = difference - moments["mean"]
    mean = moments["mean"] + away / count
    return {
        "count": count + 1,
        "last": a,
        "low": torch.minimum(moments["low"], a),
        "high": torch.maximum(moments["high"], a),
        "mean": mean,
        "square": moments["square"] + away * (difference - mean),
    }


def score(moments: Tensors) -> Vector:
    """[u] float64: s_j.

    Raises:
        RoundError: fewer than 3 models were seen, so that their differences do not vary.
    """
    count = int(moments["count"]) if moments else 0
    if count < 3:
        raise RoundError(f"The score of stage A needs at least 3 models, saw {count}.")
    variance = moments["square"] / (count - 1)
    return moments["last"].abs() * variance / (moments["high"] - moments["low"] + SPREAD)


def top_share(ranking: Vector, parts: Sequence[Layer], rho: float) -> Tensor:
    """[u] bool: in every layer the share `rho` of units ranked highest, rounded, at least one.

    Of equals the first.
    """
    chosen = []
    for own in torch.split(ranking, [one.units for one in parts]):
        kept = own.argsort(descending=True, stable=True)[: max(1, round(rho * len(own)))]
        chosen.append(torch.zeros(len(own), dtype=torch.bool).index_fill(0, kept, True))
    return torch.cat(chosen)


def first(ranking: Vector, parts: Sequence[Layer], row: int) -> Vector:
    """The ranking with one row of the last layer in front of all others."""
    place = sum(one.units for one in parts[:-1]) + row
    return ranking.index_fill(0, torch.tensor([place]), float("inf"))


def coordinates(chosen: Tensor, parts: Sequence[Layer], size: int) -> Tensor:
    """[d] bool: the weights and biases of the chosen units."""
    mask = torch.zeros(size, dtype=torch.bool)
    for own, one in zip(torch.split(chosen, [one.units for one in parts]), parts, strict=True):
        mask[one.start : one.start + one.units * one.width] = own.repeat_interleave(one.width)
        if one.bias is not None:
            mask[one.bias : one.bias + one.units] = own
    return mask


def unit(vector: Vector, mask: Tensor) -> Vector:
    """[d]: the vector on V, cut to length 1.

    Raises:
        RoundError: it is zero there.
    """
    inside = torch.where(mask, vector, 0.0)
    length = torch.linalg.vector_norm(inside)
    if not length > 0:
        raise RoundError(
            'The global model did not move on V, so direction = "drift" has no meaning: use "ones".'
        )
    direction: Vector = inside / length
    return direction
