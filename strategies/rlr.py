"""Robust learning rate: move backwards where too few clients agree on the sign.

Ozdayi, Kantarcioglu and Gel, "Defending against Backdoors in Federated Learning with Robust Learning Rate",
AAAI 2021, Algorithm 1.

The paper puts the learning rate in front of FedAvg's mean (weighted by examples); the server's learning
rate eta is 1 here. Its threshold theta is compared with |sum of signs|, in which a zero counts for
neither side. BatchNorm's running statistics are never turned
(see `strategies.layers.average_statistics`).
"""

from dataclasses import dataclass

import torch

from fedsim.contracts import Cohort, Decision, Matrix, Server, SmallestCohort, Tensors, Vector
from strategies.layers import average_statistics
from strategies.rows import by_column, combination, require, require_enough, shares


def agreement(updates: Matrix) -> Vector:
    """|number of positive minus number of negative values| of each column; [n, d] -> [d]."""
    return by_column(updates, lambda block: block.sign().sum(dim=0).abs())


@dataclass(frozen=True, kw_only=True)
class RobustLearningRate:
    """The mean, with the sign reversed where |sum of signs| is below the threshold; no client has a weight.

    Attributes:
        threshold: theta, in clients; the paper takes it above the number of hostile clients. 0: the mean.
        weighted: the mean is weighted by the number of training examples, as in the paper.
    """

    threshold: int
    weighted: bool = True

    def __post_init__(self) -> None:
        """Refuse a negative number."""
        require(self.threshold >= 0, f"threshold must be at least 0, found {self.threshold}")

    @property
    def smallest_cohort(self) -> SmallestCohort:
        """See `fedsim.contracts.Strategy`."""
        return SmallestCohort(
            f"rlr with threshold={self.threshold}", max(1, self.threshold), "lower strategy.threshold"
        )

    def init(self, model: Vector) -> Tensors:
        """No state."""
        return {}

    def step(self, state: Tensors, cohort: Cohort, server: Server) -> tuple[Tensors, Decision]:
        """The mean with its learning rates.

        Raises:
            RoundError: fewer replies than the threshold, so that every coordinate would go backwards.
        """
        require_enough(self.smallest_cohort, cohort)
        weights = shares(cohort, weighted=self.weighted)
        mean = combination(cohort.updates, weights)
        agreed = agreement(cohort.updates) >= self.threshold
        update = torch.where(agreed, mean, -mean)
        average_statistics(update, cohort, weights)
        return state, Decision(update=update.to(cohort.updates.dtype))
