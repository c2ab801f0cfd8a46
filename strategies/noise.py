"""Gaussian noise from the round's own stream."""

import torch

from fedsim.contracts import Vector


def gaussian(like: Vector, deviation: float, rng: torch.Generator) -> Vector:
    """[d] float64 of independent normal values with mean 0; drawn where the generator lives.

    Args:
        like: [d], gives length and device.
        deviation: standard deviation in parameter units; with 0 nothing is drawn.
        rng: the round's stream.
    """
    if deviation == 0:
        return torch.zeros_like(like, dtype=torch.float64)
    drawn = torch.randn(like.shape, generator=rng, dtype=torch.float64, device=rng.device)
    return drawn.mul_(deviation).to(like.device)
