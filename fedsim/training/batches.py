"""The batches of a phase: one permutation per epoch, the last smaller batch kept."""

from collections.abc import Callable, Iterator

import torch

from fedsim.contracts import Batch, Examples, Phase


def batches(
    phase: Phase, examples: Examples, stream: Callable[[], torch.Generator], device: torch.device
) -> Iterator[tuple[Batch, int]]:
    """(batch, its number of examples), over all epochs of the phase.

    Args:
        phase: says how many epochs, and how many examples per step.
        examples: the training split.
        stream: makes the generator of the permutations; not asked where one batch holds all examples.
        device: where the indices are needed.
    """
    count = len(examples)
    if phase.batch_size is None or phase.batch_size >= count:
        for _ in range(phase.epochs):
            yield examples.batch(), count
        return
    rng = stream()
    for _ in range(phase.epochs):
        order = torch.randperm(count, generator=rng).to(device)
        for index in torch.split(order, phase.batch_size):
            yield examples.batch(index), len(index)
