"""Nearest-neighbour mixing: replace each update by the mean of those nearest to it, in front of any rule.

Allouah, Farhadkhani, Guerraoui, Gupta, Pinot and Stephan, "Fixing by Mixing: A Recipe for Optimal Byzantine
ML under Heterogeneity", AISTATS 2023.

The n - f nearest include the update itself, as in the paper and in ByzFL. Of equally distant ones those
of the lowest rows are taken. The paper's condition n > 2f is enforced; ByzFL asks for n > f only.
BatchNorm's running statistics count in no distance, and are mixed like all else.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedsim.contracts import Matrix, Mixture, Server, SmallestCohort
from fedsim.errors import RoundError
from strategies.rows import column_blocks, require_byzantine, squared_distances


def nearest(updates: Matrix, byzantine: int, *, kept: Tensor | None = None) -> Matrix:
    """The mixing matrix, [n, n] float64: row i is 1 / (n - f) at the n - f rows nearest to row i, else 0.

    Args:
        updates: [n, d].
        byzantine: f.
        kept: [d] bool, the columns that distances are taken over; None: all.
    """
    squared = squared_distances(updates, kept=kept).fill_diagonal_(-1.0)  # oneself first, before exact copies
    kept = squared.argsort(dim=1, stable=True)[:, : len(updates) - byzantine]
    return torch.zeros_like(squared).scatter_(1, kept, 1 / kept.shape[1])


def mixed(updates: Matrix, mixing: Matrix) -> Matrix:
    """The product with the rows, [n, d] in the type of `updates`, accumulated in float64 block by block."""
    result = torch.empty_like(updates)
    for columns in column_blocks(updates):
        result[:, columns] = (mixing @ updates[:, columns].double()).to(updates.dtype)
    return result


@dataclass(frozen=True, kw_only=True)
class NearestNeighbourMixing:
    """The rows, each replaced by a mean of its neighbours; holds a second [n, d] array.

    Attributes:
        byzantine: f, hostile clients to withstand; n must be above 2f. 0: every row becomes the mean.
    """

    byzantine: int

    def __post_init__(self) -> None:
        """Refuse a negative number."""
        require_byzantine(self.byzantine)

    @property
    def smallest_cohort(self) -> SmallestCohort:
        """See `fedsim.contracts.Strategy`."""
        rule, change = f"nnm with byzantine={self.byzantine}", "lower the byzantine of strategy.before"
        return SmallestCohort(rule, 2 * self.byzantine + 1, change)

    def mix(self, updates: Matrix, server: Server) -> Mixture:
        """From rows [n, d]; a row's origins are its n - f neighbours, evenly.

        Raises:
            RoundError: 2f or fewer rows.
        """
        n, need = len(updates), self.smallest_cohort
        if n < need.least:
            raise RoundError(
                f"{need.rule} needs at least {need.least} replies, got {n}: "
                f"{need.change} or raise federation.clients_per_round."
            )
        origins = nearest(updates, self.byzantine, kept=server.trained)
        return Mixture(mixed(updates, origins), origins)
