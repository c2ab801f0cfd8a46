"""FedYogi: an adaptive step whose scale grows no faster than the squared update.

Reddi et al., "Adaptive Federated Optimization", ICLR 2021, Algorithm 2: m <- beta1 m + (1 - beta1) Delta,
v <- v - (1 - beta2) Delta^2 sign(v - Delta^2), x <- x + eta m / (sqrt(v) + tau).

As there, no bias correction and v starts at tau^2, the smallest value that the paper allows (Flower
starts it at 0). Its Delta is a plain mean; the inner rule here is FedAvg, weighted by examples, unless
another is given. What happens to BatchNorm's statistics: see `strategies.server_optimizer`.
"""

from dataclasses import dataclass, field

import torch

from fedsim.contracts import Cohort, Decision, Server, Strategy, Tensors, Vector
from strategies.fedavg import FedAvg
from strategies.server_optimizer import follow, require_positive, require_share, start


@dataclass(frozen=True, kw_only=True)
class FedYogi:
    """Yogi on the inner rule's updates.

    Attributes:
        learning_rate: eta; about the size of a coordinate's step, in parameter units.
        beta1: decay of the mean.
        beta2: decay of the mean square.
        tau: adaptivity; larger is closer to momentum.
        rule: what makes one update of the cohort.
    """

    learning_rate: float
    beta1: float = 0.9
    beta2: float = 0.99
    tau: float = 1e-3
    rule: Strategy = field(default_factory=FedAvg)

    def __post_init__(self) -> None:
        """Refuse values that diverge, stand still or divide by zero."""
        require_positive("learning_rate", self.learning_rate)
        require_share("beta1", self.beta1)
        require_share("beta2", self.beta2)
        require_positive("tau", self.tau)

    @property
    def needs_trusted(self) -> bool:
        """Does the inner rule need the server's own data?"""
        return bool(getattr(self.rule, "needs_trusted", False))

    def init(self, model: Vector) -> Tensors:
        """`mean` and `square`, [d] float64 each, and the inner rule's state."""
        zeros = torch.zeros_like(model, dtype=torch.float64)
        return start(self.rule, model, {"mean": zeros, "square": zeros + self.tau**2})

    def step(self, state: Tensors, cohort: Cohort, server: Server) -> tuple[Tensors, Decision]:
        """The adaptive step; weights are the inner rule's."""

        def move(delta: Vector) -> tuple[Vector, dict[str, torch.Tensor]]:
            mean = self.beta1 * state["mean"] + (1 - self.beta1) * delta
            squared, square = delta.square(), state["square"]
            square = square - (1 - self.beta2) * squared * torch.sign(square - squared)
            return self.learning_rate * mean / (square.sqrt() + self.tau), {"mean": mean, "square": square}

        return follow(self.rule, state, cohort, server, move)
