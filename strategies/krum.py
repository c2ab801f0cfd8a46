"""Krum: take the one update that sits closest to its neighbours.

Blanchard, El Mhamdi, Guerraoui and Stainer, "Machine Learning with Adversaries: Byzantine Tolerant Gradient
Descent", NeurIPS 2017, section 4.

The score sums over the n - f - 2 nearest others, as in the paper, and the paper's condition 2f + 2 < n is
enforced. ByzFL takes n - f - 1 others and asks for 2f < n: its scores for f are those of this file for f - 1.
BatchNorm's running statistics count in no distance; they are the chosen client's.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedsim.contracts import Cohort, Decision, Matrix, Server, SmallestCohort, Tensors, Vector
from strategies.rows import require_byzantine, require_enough, squared_distances


def krum_scores(updates: Matrix, byzantine: int, *, kept: Tensor | None = None) -> Vector:
    """Sum of squared distances from each update to its n - f - 2 nearest others.

    Args:
        updates: [n, d].
        byzantine: f, hostile clients to withstand; n must be above 2f + 2.
        kept: [d] bool, the columns that distances are taken over; None: all.

    Returns:
        [n] float64, in squared parameter units; lower is more central.
    """
    n = len(updates)
    squared = squared_distances(updates, kept=kept).fill_diagonal_(torch.inf)  # nobody is their own neighbour
    return squared.sort(dim=1).values[:, : n - byzantine - 2].sum(dim=1)


@dataclass(frozen=True, kw_only=True)
class Krum:
    """The update with the lowest score; of equal ones, that of the lowest partition.

    Attributes:
        byzantine: f, hostile clients to withstand; n must be above 2f + 2.
    """

    byzantine: int

    def __post_init__(self) -> None:
        """Refuse a negative number."""
        require_byzantine(self.byzantine)

    @property
    def smallest_cohort(self) -> SmallestCohort:
        """See `fedsim.contracts.Strategy`."""
        return SmallestCohort(
            f"krum with byzantine={self.byzantine}", 2 * self.byzantine + 3, "lower strategy.byzantine"
        )

    def init(self, model: Vector) -> Tensors:
        """No state."""
        return {}

    def step(self, state: Tensors, cohort: Cohort, server: Server) -> tuple[Tensors, Decision]:
        """The chosen update; weight 1 for its client, 0 for all others.

        Raises:
            RoundError: 2f + 2 or fewer replies.
        """
        require_enough(self.smallest_cohort, cohort)
        scores = krum_scores(cohort.updates, self.byzantine, kept=cohort.layout.trained)
        chosen = int(scores.argsort(stable=True)[0])
        weights = torch.zeros_like(scores)
        weights[chosen] = 1.0
        return state, Decision(update=cohort.updates[chosen].clone(), weights=weights)
