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
from fedsim.contracts import Batch, Context, LocalProgram, Matrix, Phase, Tensors
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


def within(rows: Matrix, radius: float, *, fill: bool) -> Matrix:
    """Rows cut to a Euclidean norm; with `fill` shorter ones are scaled up to it, but for rows of zeros.

    Args:
        rows: [m, d].
        radius: above 0, in parameter units.
        fill: give all of them this norm.
    """
    lengths = torch.linalg.vector_norm(rows, dim=1, dtype=torch.float64)
    concerned = (lengths > 0) if fill else (lengths > radius)
    factors = torch.where(concerned, radius / torch.where(concerned, lengths, 1.0), 1.0)
    return (rows * factors[:, None]).to(rows.dtype)


def median_norm(rows: Matrix) -> float:
    """The median Euclidean norm of [n, d]; of an even number the lower of the two middle ones."""
    return float(torch.linalg.vector_norm(rows, dim=1, dtype=torch.float64).median())


def others(updates: Matrix, own: Matrix) -> Matrix:
    """The rows of `updates` that are not, to the bit, among `own`."""
    kept = [row for row in updates if not any(torch.equal(row, mine) for mine in own)]
    return torch.stack(kept) if kept else updates[:0]
