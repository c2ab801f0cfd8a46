"""FedYogi: an adaptive step whose scale grows no faster than the squared update.

Reddi et al., "Adaptive Federated Optimization", ICLR 2021, Algorithm 2: m <- beta1 m + (1 - beta1) Delta,
v <- v - (1 - beta2) Delta^2 sign(v - Delta^2), x <- x + eta m / (sqrt(v) + tau).

As there, no bias correction and v starts at tau^2, the smallest value that the paper allows (Flower
starts it at 0). Its Delta is a plain mean; the inner rule here is FedAvg, weighted by examples, unless
another is given. What happens to BatchNorm's statistics: see `strategies.server_optimizer`.
"""

from dataclasses import dataclass

import torch

from fedsim.contracts import Vector
from strategies.server_optimizer import Adaptive


@dataclass(frozen=True, kw_only=True)
class FedYogi(Adaptive):
    """Yogi on the inner rule's updates; see `Adaptive` for the attributes."""

    def next_square(self, square: Vector, squared: Vector) -> Vector:
        """A step of (1 - beta2) Delta^2 towards Delta^2."""
        return square - (1 - self.beta2) * squared * torch.sign(square - squared)
