"""Gradient descent on named tensors, all examples at once."""

from collections.abc import Callable

import torch
from torch import Tensor

from fedsim.contracts import Matrix, Optimizer, Tensors, Vector
from fedsim.params import Layout

StepLosses = Callable[[Tensors, int], Tensor]


def summed(gradients: Matrix) -> Vector:
    """[k, d] -> [d]."""
    return gradients.sum(dim=0)


def descend(
    tensors: Tensors,
    losses: StepLosses,
    optimizer: Optimizer,
    steps: int,
    combine: Callable[[Matrix], Vector] = summed,
) -> dict[str, Tensor]:
    """The tensors after some steps; those given stay as they are.

    Args:
        tensors: all of them floating-point, all of them trained.
        losses: (tensors, number of the step from 0) -> [k] or [].
        optimizer: of the flat vector.
        steps: how many.
        combine: the gradients of the k losses [k, d] -> [d].
    """
    layout = Layout.of(tensors)
    vector = layout.flatten(tensors).clone()
    state = optimizer.init(vector)
    for step in range(steps):
        leaf = vector.detach().requires_grad_()
        found = losses(layout.unflatten(leaf, {}), step).reshape(-1)
        rows = [
            torch.autograd.grad(one, leaf, retain_graph=place + 1 < len(found))[0]
            for place, one in enumerate(found)
        ]
        optimizer.step(vector, rows[0] if len(rows) == 1 else combine(torch.stack(rows)), state)
    return layout.unflatten(vector, layout.integers_of(tensors))
