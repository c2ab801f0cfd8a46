"""Which tier a run takes, and in what chunks: by declared sizes alone, so a file never chooses differently.

A stacked step (T2) saves what Python and autograd cost per client and step; it pays where the arithmetic of
one client's step takes less than that. Convolutions, mapped over clients, become grouped ones, which are
slow; a kernel counts with every place it is applied to, which leaves only tiny images to T2.
"""

from collections.abc import Sequence
from math import ceil
from typing import Literal

from torch import nn

from fedsim.contracts import DataSpec, LocalProgram
from fedsim.training.functional import model_tensors

Tier = Literal["T1", "T2"]

STACKED_STEP = 2**23  # multiply-adds of one client's step, forward; about a millisecond with the gradient
CHUNK_VALUES = 2**21  # parameters of all clients of a stacked chunk: 8 MB in float32
CHUNK_WORK = 2**25  # multiply-adds of all steps of a stacked chunk's epoch


def choose_tier(program: LocalProgram, spec: DataSpec, sizes: Sequence[int]) -> Tier:
    """T2 where clients may be stacked and the average client's steps are small.

    Args:
        program: of one client.
        spec: of its data.
        sizes: training examples by client.
    """
    if program.stack is None or len(sizes) < 2:
        return "T1"
    if spec.task != "rows":
        return "T2" if hasattr(program.model, "forward_stacked") else "T1"
    return "T2" if _step(program, spec, sizes) <= STACKED_STEP else "T1"


def stacked_chunk(clients: int, program: LocalProgram, spec: DataSpec, sizes: Sequence[int]) -> int:
    """Clients per stacked chunk: what fits a processor's cache, and takes milliseconds rather than seconds.

    Args:
        clients: of the cohort, divided evenly.
        program: of one client.
        spec: of its data.
        sizes: training examples by client.
    """
    values = sum(tensor.numel() for tensor in model_tensors(program.model).values())
    work = uses(program.model, spec) * _average(sizes)
    most = max(2, min(CHUNK_VALUES // max(values, 1), CHUNK_WORK // max(work, 1)))
    return ceil(clients / ceil(clients / most))


def uses(model: nn.Module, spec: DataSpec) -> int:
    """Multiply-adds of one example, forward: a matrix entry is used once, a kernel's at every pixel."""
    pixels = spec.shape[1] * spec.shape[2] if len(spec.shape) == 3 else 1
    return sum(t.numel() * (pixels if t.dim() > 2 else 1) for t in model_tensors(model).values())


def _step(program: LocalProgram, spec: DataSpec, sizes: Sequence[int]) -> int:
    average = _average(sizes)
    examples = max(min(phase.batch_size or average, average) for phase in program.phases)
    return uses(program.model, spec) * examples


def _average(sizes: Sequence[int]) -> int:
    return max(1, sum(sizes) // max(len(sizes), 1))
