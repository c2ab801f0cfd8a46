"""What FedAvgM, FedAdam and FedYogi share: an optimiser that takes another rule's update as its gradient.

Reddi et al., "Adaptive Federated Optimization", ICLR 2021, Algorithm 1 (FedOpt), with the minus sign inside:
the pseudo-gradient is -Delta, and an update is added to the model.

BatchNorm's running statistics are averages, not parameters: momentum would carry a variance below zero (see
`strategies.layers.average_statistics`). They take the inner rule's update as it is.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from fedsim.contracts import Cohort, Decision, Server, SmallestCohort, Strategy, Tensors, Vector
from strategies.fedavg import FedAvg
from strategies.layers import statistics
from strategies.rows import require

Move = Callable[[Vector], tuple[Vector, dict[str, Tensor]]]

INNER = "rule/"
"""Prefix of the inner rule's state."""


def start(rule: Strategy, model: Vector, own: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The optimiser's own state, and the inner rule's under its prefix."""
    return {**own, **{f"{INNER}{name}": value for name, value in rule.init(model).items()}}


def follow(
    rule: Strategy, state: Tensors, cohort: Cohort, server: Server, move: Move
) -> tuple[dict[str, Tensor], Decision]:
    """One step of the inner rule, then one of the optimiser.

    Args:
        rule: makes Delta of the cohort, and the clients' weights.
        state: the optimiser's, and the inner rule's under its prefix.
        cohort: of the round.
        server: of the round.
        move: Delta [d] float64 -> (the optimiser's update [d] float64, its new state).
    """
    inner = {name.removeprefix(INNER): value for name, value in state.items() if name.startswith(INNER)}
    inner_after, decision = rule.step(inner, cohort, server)
    moved, own = move(decision.update.double())
    update = moved.to(decision.update.dtype)
    for piece in statistics(cohort.layout):
        update[piece.columns] = decision.update[piece.columns]
    after = {**own, **{f"{INNER}{name}": value for name, value in inner_after.items()}}
    aggregate = decision.update if decision.aggregate is None else decision.aggregate
    return after, replace(decision, update=update, aggregate=aggregate)


def require_share(name: str, value: float) -> None:
    """Refuse a decay outside [0, 1)."""
    require(0 <= value < 1, f"{name} must lie in [0, 1), found {value}")


def require_positive(name: str, value: float) -> None:
    """Refuse a number that is not above 0 and finite."""
    require(0 < value < float("inf"), f"{name} must be above 0, found {value}")


@dataclass(frozen=True, kw_only=True)
class Adaptive(ABC):
    """FedOpt's Algorithm 2, but for how the mean square grows.

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

    @property
    def smallest_cohort(self) -> SmallestCohort | None:
        """The inner rule's."""
        return getattr(self.rule, "smallest_cohort", None)

    @abstractmethod
    def next_square(self, square: Vector, squared: Vector) -> Vector:
        """The new v of the old one and Delta^2; [d], [d] -> [d]."""

    def init(self, model: Vector) -> Tensors:
        """`mean` and `square`, [d] float64 each, and the inner rule's state."""
        zeros = torch.zeros_like(model, dtype=torch.float64)
        return start(self.rule, model, {"mean": zeros, "square": zeros + self.tau**2})

    def step(self, state: Tensors, cohort: Cohort, server: Server) -> tuple[Tensors, Decision]:
        """The adaptive step; weights are the inner rule's."""

        def move(delta: Vector) -> tuple[Vector, dict[str, Tensor]]:
            mean = self.beta1 * state["mean"] + (1 - self.beta1) * delta
            square = self.next_square(state["square"], delta.square())
            return self.learning_rate * mean / (square.sqrt() + self.tau), {"mean": mean, "square": square}

        return follow(self.rule, state, cohort, server, move)
