"""FedAvgM: momentum on the server.

Hsu, Qi and Brown, "Measuring the Effects of Non-Identical Data Distribution for Federated Visual
Classification", 2019 (arXiv:1909.06335): v <- beta v + Delta, w <- w + v.

`dampened` takes the momentum of FedOpt (Reddi et al., ICLR 2021, Algorithm 2), v <- beta v + (1 - beta)
Delta, instead. What happens to BatchNorm's statistics: see `strategies.server_optimizer`.
"""

from dataclasses import dataclass, field

import torch

from fedsim.contracts import Cohort, Decision, Server, SmallestCohort, Strategy, Tensors, Vector
from strategies.fedavg import FedAvg
from strategies.server_optimizer import follow, require_positive, require_share, start


@dataclass(frozen=True, kw_only=True)
class FedAvgM:
    """The velocity of the inner rule's updates.

    Attributes:
        momentum: beta. 0 with learning rate 1: the inner rule alone.
        learning_rate: eta, by which the velocity is multiplied.
        dampened: the new update enters the velocity times 1 - beta.
        rule: what makes one update of the cohort.
    """

    momentum: float = 0.9
    learning_rate: float = 1.0
    dampened: bool = False
    rule: Strategy = field(default_factory=FedAvg)

    def __post_init__(self) -> None:
        """Refuse values that diverge or stand still."""
        require_share("momentum", self.momentum)
        require_positive("learning_rate", self.learning_rate)

    @property
    def needs_trusted(self) -> bool:
        """Does the inner rule need the server's own data?"""
        return bool(getattr(self.rule, "needs_trusted", False))

    @property
    def smallest_cohort(self) -> SmallestCohort | None:
        """The inner rule's."""
        return getattr(self.rule, "smallest_cohort", None)

    def init(self, model: Vector) -> Tensors:
        """`velocity` [d] float64, and the inner rule's state."""
        return start(self.rule, model, {"velocity": torch.zeros_like(model, dtype=torch.float64)})

    def step(self, state: Tensors, cohort: Cohort, server: Server) -> tuple[Tensors, Decision]:
        """The learning rate times the velocity; weights are the inner rule's."""

        def move(delta: Vector) -> tuple[Vector, dict[str, torch.Tensor]]:
            entering = (1 - self.momentum) * delta if self.dampened else delta
            velocity = self.momentum * state["velocity"] + entering
            return self.learning_rate * velocity, {"velocity": velocity}

        return follow(self.rule, state, cohort, server, move)
