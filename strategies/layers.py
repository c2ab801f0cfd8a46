"""Which columns of the rows belong to which tensor of the model."""

import math
from dataclasses import dataclass

from fedsim.contracts import Cohort, Vector
from fedsim.errors import RoundError
from fedsim.params import Layout
from strategies.rows import combination


@dataclass(frozen=True)
class Piece:
    """One floating-point tensor: its name, its shape, and its columns in the rows."""

    name: str
    shape: tuple[int, ...]
    columns: slice


def pieces(layout: Layout) -> tuple[Piece, ...]:
    """All floating-point tensors, in the order of their columns."""
    found, start = [], 0
    for name, shape, _ in layout.floats:
        end = start + math.prod(shape)
        found.append(Piece(name, shape, slice(start, end)))
        start = end
    return tuple(found)


def output_layer(layout: Layout) -> tuple[Piece, ...]:
    """The weights and biases that make the outputs, with one output per entry of their first dimension.

    These are the last tensors in a row that have as many entries there as the last matrix, and the same
    first word in their names: `head.weight`, `head.bias`.

    Raises:
        RoundError: the shared model has no matrix.
    """
    every = pieces(layout)
    matrices = [piece for piece in every if len(piece.shape) >= 2]
    if not matrices:
        raise RoundError(
            "The shared model has no weight matrix, so that the rule finds no output layer: "
            "share the last layer, or choose another strategy.kind."
        )
    last = matrices[-1]
    found: list[Piece] = []
    for piece in reversed(every):
        if piece.shape[:1] != last.shape[:1] or _first_word(piece) != _first_word(last):
            break
        found.insert(0, piece)
    return tuple(found) if last in found else (last,)


def _first_word(piece: Piece) -> str:
    return piece.name.partition(".")[0]


def statistics(layout: Layout) -> tuple[Piece, ...]:
    """The tensors that are no trained parameters: BatchNorm's running statistics, which are averages."""
    return tuple(piece for piece in pieces(layout) if piece.name in layout.buffers)


def average_statistics(update: Vector, cohort: Cohort, weights: Vector) -> None:
    """Set the columns of BatchNorm's running statistics to a weighted mean of the clients', in place.

    A rule that turns, stretches, carries over or noises updates could push a variance below zero, and the
    next forward pass would give NaN.

    Args:
        update: [d], the rule's own, to be changed.
        cohort: of the round.
        weights: [n], not negative, with a sum of at most 1.
    """
    for piece in statistics(cohort.layout):
        update[piece.columns] = combination(cohort.updates[:, piece.columns], weights).to(update.dtype)
