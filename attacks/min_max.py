"""Min-Max: as far from the honest mean as the honest updates are from each other.

Shejwalkar and Houmansadr, "Manipulating the Byzantine: Optimizing Model Poisoning Attacks and Defenses for
Federated Learning", NDSS 2021, section IV. Every malicious row is mean + gamma * p with the largest gamma for
which

    max_i |mean + gamma p - u_i|  <=  max_ij |u_i - u_j|,

and p one of: unit = -mean / |mean|, deviation = -std, sign = -sign(mean). The paper finds deviation strongest
in most of its tables. gamma is bisected as in their Algorithm 1, to a tolerance tau.

Departures: the search starts from the interval [0, max_ij |u_i - u_j| / |p|] in place of a constant, and tau
is relative to it, so that no scale of updates is cut off. (mean + gamma p - u_i averages to gamma p, so
no larger gamma is feasible.) The deviation is divided by k - 1, as in the paper's code. The u_i are the
malicious clients' own honest updates, or everybody's. A round with one malicious client sends its honest one.
Distances are taken over trained values, without BatchNorm's statistics.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from attacks.estimates import Estimating, together
from fedsim.contracts import Matrix, Tensors, Vector
from fedsim.errors import ConfigError
from fedsim.threat import View

Kind = Literal["deviation", "unit", "sign"]


def direction_of(honest: Matrix, kind: Kind) -> Vector:
    """[d], the direction p of k honest updates [k, d]; 0 for the deviation of one, or a mean of 0."""
    mean = honest.mean(dim=0)
    if kind == "deviation":
        return -honest.std(dim=0) if len(honest) > 1 else torch.zeros_like(mean)
    if kind == "sign":
        return -mean.sign()
    norm = torch.linalg.vector_norm(mean)
    return -mean / norm if norm > 0 else torch.zeros_like(mean)


def largest_gamma(honest: Matrix, direction: Vector, tolerance: float) -> float:
    """The largest gamma that keeps mean + gamma p as near to all as they are to each other.

    Args:
        honest: [k, d] float64.
        direction: [d], p.
        tolerance: tau, relative to the widest feasible interval.
    """
    length = torch.linalg.vector_norm(direction)
    widest = torch.pdist(honest).max() if len(honest) > 1 else torch.zeros((), dtype=honest.dtype)
    if length == 0 or widest == 0:
        return 0.0
    away = honest.mean(dim=0) - honest
    squares, products = away.square().sum(dim=1), away @ direction

    def feasible(gamma: float) -> bool:
        distances: Tensor = squares + 2 * gamma * products + (gamma * length).square()
        return bool(distances.max() <= widest.square())

    top = float(widest / length)
    low, high = 0.0, top
    while high - low > tolerance * top:
        middle = (low + high) / 2
        low, high = (middle, high) if feasible(middle) else (low, middle)
    return low


@dataclass(frozen=True, kw_only=True)
class MinMax(Estimating):
    """All malicious clients send the same row; see `Estimating` for `sees`.

    Attributes:
        perturbation: the direction p.
        tolerance: tau of the bisection, relative to the interval that it starts from.
    """

    perturbation: Kind = "deviation"
    tolerance: float = 1e-5

    def __post_init__(self) -> None:
        if not 1e-12 <= self.tolerance < 1:  # below, float64 cannot halve the interval any more
            raise ConfigError(f"tolerance must be at least 1e-12 and below 1, found {self.tolerance}.")

    def craft(self, state: Tensors, view: View, rng: torch.Generator) -> Matrix:
        """[m, d]."""
        honest = self.honest(view)
        direction = direction_of(honest, self.perturbation)
        kept = view.layout.trained
        counted = (honest, direction) if kept is None else (honest[:, kept], direction[kept])
        gamma = largest_gamma(*counted, self.tolerance)
        return together(honest.mean(dim=0) + gamma * direction, view)
