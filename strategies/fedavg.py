"""Federated averaging: the mean of the clients' updates.

McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data", AISTATS 2017,
Algorithm 1. The last line there averages models; adding the average of the updates to the model they
started from gives the same model.
"""

from dataclasses import dataclass

import torch

from fedsim.contracts import Cohort, Decision, Matrix, Server, Tensors, Vector


def weighted_mean(updates: Matrix, weights: Vector) -> Vector:
    """The mean of the rows, each counted `weights[i]` times.

    Accumulated in float64, row by row in their order; beside the rows it holds two vectors of length d.

    Args:
        updates: [n, d] in model-parameter units.
        weights: [n], not negative, with a positive sum; they need not sum to 1.

    Returns:
        [d] in the type of `updates`.
    """
    shares = weights.double() / weights.double().sum()
    mean = torch.zeros(updates.shape[1], dtype=torch.float64, device=updates.device)
    for row, share in zip(updates, shares.tolist(), strict=True):
        mean.add_(row, alpha=share)
    return mean.to(updates.dtype)


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
        """The mean, and each client's share of it."""
        counts = cohort.examples.double() if self.weighted else torch.ones(len(cohort.partitions)).double()
        shares = counts / counts.sum()
        return state, Decision(update=weighted_mean(cohort.updates, shares), weights=shares)
