"""The size of a stacked chunk (T2), by declared sizes alone, so that a file never chooses differently."""

from collections.abc import Sequence
from math import ceil

from torch import nn

from fedsim.contracts import DataSpec, LocalProgram
from fedsim.training.functional import model_tensors

CHUNK_VALUES = 2**21  # parameters of all clients of a stacked chunk: 8 MB in float32
CHUNK_WORK = 2**25  # multiply-adds of all steps of a stacked chunk's epoch


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


def _average(sizes: Sequence[int]) -> int:
    return max(1, sum(sizes) // max(len(sizes), 1))
