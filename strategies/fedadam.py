"""FedAdam: an adaptive step for each coordinate, on the server.

Reddi et al., "Adaptive Federated Optimization", ICLR 2021, Algorithm 2: m <- beta1 m + (1 - beta1) Delta,
v <- beta2 v + (1 - beta2) Delta^2, x <- x + eta m / (sqrt(v) + tau).

As there, no bias correction (unlike Adam) and v starts at tau^2, the smallest value that the paper allows
(Flower starts it at 0). Its Delta is a plain mean; the inner rule here is FedAvg, weighted by examples,
unless another is given. What happens to BatchNorm's statistics: see `strategies.server_optimizer`.
"""

from dataclasses import dataclass

from fedsim.contracts import Vector
from strategies.server_optimizer import Adaptive


@dataclass(frozen=True, kw_only=True)
class FedAdam(Adaptive):
    """Adam on the inner rule's updates; see `Adaptive` for the attributes."""

    def next_square(self, square: Vector, squared: Vector) -> Vector:
        """The decayed mean: beta2 v + (1 - beta2) Delta^2."""
        return self.beta2 * square + (1 - self.beta2) * squared
