"""Gradient transforms: applied to the combined gradient before the optimiser's step."""

import math

import torch

from fedsim.contracts import Context, GradientTransform, Vector
from fedsim.errors import ConfigError


def clip_by_norm(max_norm: float) -> GradientTransform:
    """Scale a gradient down to Euclidean norm `max_norm` where it is longer.

    The norm runs over the last dimension: over all trained tensors of one client, for each client of a
    stack [c, d]. Exact, where torch's `clip_grad_norm_` divides by the norm plus 1e-6.

    Raises:
        ConfigError: `max_norm` is not a finite number above 0.
    """
    if not (max_norm > 0 and math.isfinite(max_norm)):
        raise ConfigError(f"clip_norm must be above 0 and finite, found {max_norm}.")

    def clip(gradient: Vector, context: Context) -> Vector:
        norm = torch.linalg.vector_norm(gradient, dim=-1, keepdim=True)
        scale = (max_norm / norm).clamp(max=1.0)  # norm 0: infinity becomes 1
        return gradient.mul(scale)

    return clip


def chain(*transforms: GradientTransform) -> GradientTransform:
    """One transform after the other, in the order given."""

    def chained(gradient: Vector, context: Context) -> Vector:
        for transform in transforms:
            gradient = transform(gradient, context)
        return gradient

    return chained
