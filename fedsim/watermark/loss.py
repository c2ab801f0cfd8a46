"""The loss that presses a key's signs into explanations, and how its gradient meets the task's."""

import torch
from torch import Tensor

from fedsim.contracts import Context, Matrix, Vector
from fedsim.watermark.explanation import Projection


def embedding_loss(projection: Projection, signs: Tensor, probabilities: Tensor, margin: float) -> Tensor:
    """mean_t mean_i max(0, margin - w_i e_i), Downer et al., ICML 2026, equation of the watermark loss.

    Args:
        projection: onto the m marked features of t sets.
        signs: [m], w.
        probabilities: [t, n, c], differentiable.
        margin: epsilon, in units of e.

    Returns:
        [] float64.
    """
    return (margin - signs * projection.explain(probabilities)).clamp(min=0).mean()


def shares_met(projection: Projection, signs: Tensor, probabilities: Tensor) -> float:
    """The share of the t m marks whose sign is the key's."""
    return float((signs * projection.explain(probabilities) > 0).double().mean())


def pcgrad(gradients: Matrix, context: Context | None = None) -> Vector:
    """The sum of the gradients, each without its part against each other one.

    Yu et al., "Gradient Surgery for Multi-Task Learning", NeurIPS 2020, Algorithm 1. The others are taken
    in their order, not a random one; with two gradients there is no order.

    Args:
        gradients: [k, d].
        context: not used; it makes this a `Phase.combine`.

    Returns:
        [d].
    """
    changed = []
    for place, own in enumerate(gradients):
        for other in (*gradients[:place], *gradients[place + 1 :]):
            product = own @ other
            if product < 0:  # then `other` is not zero
                own = own - product / (other @ other) * other
        changed.append(own)
    return torch.stack(changed).sum(dim=0)
