"""Federated averaging: the mean of the clients' updates.

McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data", AISTATS 2017,
Algorithm 1. The last line there averages models; adding the average of the updates to the model they
started from gives the same model.
"""

from dataclasses import dataclass

from fedsim.contracts import Cohort, Decision, Matrix, Server, Tensors, Vector
from strategies.rows import combination, require_cohort, shares


def weighted_mean(updates: Matrix, weights: Vector) -> Vector:
    """The mean of the rows, each counted `weights[i]` times.

    Accumulated in float64, row by row in their order; beside the rows it holds two vectors of length d.

    Args:
        updates: [n, d] in model-parameter units.
        weights: [n], not negative, with a positive sum; they need not sum to 1.

    Returns:
        [d] in the type of `updates`.
    """
    return combination(updates, weights.double() / weights.double().sum()).to(updates.dtype)


@dataclass(frozen=True, kw_only=True)
class FedAvg:
    """The mean of all updates.

    Attributes:
        weighted: by the number of training examples, as in the paper; else all clients count alike.
    """

    weighted: bool = True

    def init(self, model: Vector) -> Tensors:
        """No state."""
        return {}

    def step(self, state: Tensors, cohort: Cohort, server: Server) -> tuple[Tensors, Decision]:
        """The mean, and each client's share of it.

        Raises:
            RoundError: fewer than 1 reply.
        """
        require_cohort("fedavg", cohort, 1, "allow fewer failures")
        weights = shares(cohort, weighted=self.weighted)
        return state, Decision(update=weighted_mean(cohort.updates, weights), weights=weights)
