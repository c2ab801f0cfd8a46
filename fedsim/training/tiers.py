"""Which tier a run takes, and the size of a stacked chunk (T2): by declared sizes alone.

Never by a clock, the machine or the number of workers, so that a file chooses alike everywhere. The rule of
`engine.tier = "auto"` estimates what both tiers cost, in multiply-adds: a step costs its arithmetic and the
bookkeeping around it. T1 pays the bookkeeping for every client's step, T2 once for all that step together.

The constants are calibrated by `experiments/benchmarks` (W1, W2, W3) and the experiments beside it, and
only matter where the tiers are close.
"""

from collections.abc import Sequence
from math import ceil
from typing import Literal

from torch import nn

from fedsim.contracts import DataSpec, LocalProgram, Phase
from fedsim.training.functional import model_tensors

CHUNK_VALUES = 2**21  # parameters of all clients of a stacked chunk: 8 MB in float32
CHUNK_WORK = 2**28  # multiply-adds of all steps of a stacked chunk's epoch
STEP_COST = 2**23  # multiply-adds in the time of a client's step without its arithmetic
STACKED_STEP_COST = 3 * STEP_COST  # the same of one stacked step, of any number of clients
MARGIN = 1.25  # T2 must be cheaper by so much: bits are equal to a deployment's in T1 alone
STACKED_GRAPHS = 0.5  # arithmetic of a stacked graph model: one block-diagonal product, no scattered sums
MAPPED = 2.0  # of a model without a stacked form: convolutions become grouped ones, which are slower

LocalTier = Literal["T1", "T2"]


def automatic_tier(
    clients: int, program: LocalProgram, spec: DataSpec, sizes: Sequence[int], chunk: int | None = None
) -> LocalTier:
    """The tier that `auto` means.

    Args:
        clients: of a cohort.
        program: of one client, honest.
        spec: of its data.
        sizes: training examples by client.
        chunk: of a stacked task, where the file sets it.
    """
    model = program.model
    stacks = hasattr(model, "forward_stacked")
    if program.stack is None or (spec.task != "rows" and not stacks):
        return "T1"
    length = min(chunk or stacked_chunk(clients, program, spec, sizes), clients)
    rate = MAPPED if not stacks else 1.0 if spec.task == "rows" else STACKED_GRAPHS
    alone = together = 0.0
    for phase in program.phases:
        steps, groups, seen = _steps(phase, spec, sizes, length)
        arithmetic = phase.epochs * seen * uses(model, spec)
        alone += phase.epochs * steps * STEP_COST + arithmetic
        together += phase.epochs * groups * STACKED_STEP_COST + rate * arithmetic
    return "T2" if alone > MARGIN * together else "T1"


def _steps(phase: Phase, spec: DataSpec, sizes: Sequence[int], length: int) -> tuple[int, int, int]:
    """Of an epoch: clients' steps, stacked steps where clients sit in chunks, examples."""
    steps = groups = 0
    filled = [size for size in sizes if size]
    for start in range(0, len(filled), length):
        chunk = filled[start : start + length]
        most = phase.batch_size or max(chunk)
        steps += sum(ceil(size / most) for size in chunk)
        whole = [size for size in chunk if size <= most]
        ragged = spec.task != "rows"  # all that fits one batch is one step, whatever the size
        rests = {size % most for size in chunk if size > most and size % most}
        groups += max(size // most if size > most else 0 for size in chunk) + len(rests)
        groups += min(1, len(whole)) if ragged else len(set(whole))
    return steps, groups, sum(sizes)


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
