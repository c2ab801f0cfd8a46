"""Stage C: malicious training that moves V alone, and the size of the upload.

A malicious client minimises 0.7 CE + 0.3 |theta - theta_global|_2 (a norm, not its square) on batches of
which a part is poisoned, for its own number of epochs at its own share of the honest learning rate. After
every optimiser step theta <- theta_global + P_V (theta - theta_global): outside V the parameters are the
received ones to the bit, whatever momentum, weight decay or Adam would have made of them. The buffers that
training changes, BatchNorm's statistics, are never taken over, so that the received ones are sent back.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from attacks.programs import change_phases
from fedsim.contracts import Batch, Context, LocalProgram, Matrix, Phase, Tensors, Vector
from fedsim.params import Layout
from fedsim.training.functional import parameter_names


def keep_near(program: LocalProgram, proximal: float, *, buffers: bool) -> LocalProgram:
    """The program whose losses weigh 1 - proximal, beside proximal |theta - theta_global|_2.

    The distance runs over the trained parameters that were received. Its gradient at distance 0 is 0.

    Args:
        program: with the batches already poisoned.
        proximal: in [0, 1); 0 leaves the losses as they are.
        buffers: take over the buffers that training changes.
    """
    parameters = parameter_names(program.model)

    def changed(phase: Phase) -> Phase:
        names = [name for name in sorted(parameters) if phase.trains(name)]

        def losses(tensors: Tensors, batch: Batch, context: Context) -> tuple[Tensor, Tensors]:
            plain, changed_buffers = phase.losses(tensors, batch, context)
            kept = changed_buffers if buffers else {}
            received = [name for name in names if name in context.anchor]
            if not proximal or not received:
                return plain, kept
            away = distance(tensors, context.anchor, received)
            return (1 - proximal) * plain + proximal * away / plain.numel(), kept

        return replace(phase, losses=losses)

    return change_phases(program, changed)


def distance(tensors: Tensors, anchor: Tensors, names: Sequence[str]) -> Tensor:
    """[]: Euclidean, over the named tensors together."""
    lengths = [torch.linalg.vector_norm(tensors[name] - anchor[name]) for name in names]
    whole: Tensor = torch.linalg.vector_norm(torch.stack(lengths))
    return whole


def without_statistics(rows: Matrix, layout: Layout) -> Matrix:
    """The columns [m, k] that training moves.

    BatchNorm's statistics move several times as far as parameters do. A client that sends the received ones
    back would, filled up to a norm with them in it, send parameters that are several times as long.
    """
    return rows if layout.trained is None else rows[:, layout.trained.to(rows.device)]


def within(rows: Matrix, radius: float, *, fill: bool, lengths: Vector | None = None) -> Matrix:
    """Rows cut to a Euclidean norm; with `fill` shorter ones are scaled up to it, but for rows of zeros.

    Args:
        rows: [m, d].
        radius: above 0, in parameter units.
        fill: give all of them this norm.
        lengths: [m], what counts as their norms; None: Euclidean, over all columns.
    """
    if lengths is None:
        lengths = norms(rows)
    concerned = (lengths > 0) if fill else (lengths > radius)
    factors = torch.where(concerned, radius / torch.where(concerned, lengths, 1.0), 1.0)
    return (rows * factors[:, None]).to(rows.dtype)


def norms(rows: Matrix) -> Vector:
    """[m] float64, Euclidean."""
    lengths: Vector = torch.linalg.vector_norm(rows, dim=1, dtype=torch.float64)
    return lengths


def median_norm(rows: Matrix) -> float:
    """The median Euclidean norm of [n, d]; of an even number the lower of the two middle ones."""
    return float(norms(rows).median())


def others(updates: Matrix, places: Sequence[int]) -> Matrix:
    """The rows of `updates` that are not at `places`."""
    kept = torch.ones(len(updates), dtype=torch.bool)
    kept[list(places)] = False
    return updates[kept.to(updates.device)]
