"""Multi-Krum: the mean of the updates that sit closest to their neighbours.

Blanchard, El Mhamdi, Guerraoui and Stainer, "Machine Learning with Adversaries: Byzantine Tolerant Gradient
Descent", NeurIPS 2017.

The paper leaves m, the number of updates, open between 1, which is Krum, and n, the mean. Its experiments
take m = n - f, and so do the default here and ByzFL. The scores are those of `strategies.krum`, which says
where ByzFL's differ.
"""

from dataclasses import dataclass

import torch

from fedsim.contracts import Cohort, Decision, Server, SmallestCohort, Tensors, Vector
from strategies.krum import krum_scores
from strategies.rows import combination, require, require_byzantine, require_enough


@dataclass(frozen=True, kw_only=True)
class MultiKrum:
    """The plain mean of the updates with the lowest scores; of equal ones, those of the lowest partitions.

    Attributes:
        byzantine: f, hostile clients to withstand; n must be above 2f + 2.
        keep: m, updates to average; None: n - f.
    """

    byzantine: int
    keep: int | None = None

    def __post_init__(self) -> None:
        """Refuse numbers that leave nothing."""
        require_byzantine(self.byzantine)
        require(self.keep is None or self.keep >= 1, f"keep must be at least 1, found {self.keep}")

    @property
    def smallest_cohort(self) -> SmallestCohort:
        """See `fedsim.contracts.Strategy`."""
        least = 2 * self.byzantine + 3
        if self.keep is not None and self.keep > least:
            return SmallestCohort(f"multi_krum with keep={self.keep}", self.keep, "lower strategy.keep")
        return SmallestCohort(
            f"multi_krum with byzantine={self.byzantine}", least, "lower strategy.byzantine"
        )

    def init(self, model: Vector) -> Tensors:
        """No state."""
        return {}

    def step(self, state: Tensors, cohort: Cohort, server: Server) -> tuple[Tensors, Decision]:
        """The mean of the chosen; each weighs 1/m, all others 0.

        Raises:
            RoundError: 2f + 2 or fewer replies, or fewer than m.
        """
        require_enough(self.smallest_cohort, cohort)
        keep = len(cohort.partitions) - self.byzantine if self.keep is None else self.keep
        scores = krum_scores(cohort.updates, self.byzantine, kept=cohort.layout.trained)
        weights = torch.zeros_like(scores)
        weights[scores.argsort(stable=True)[:keep]] = 1 / keep
        update = combination(cohort.updates, weights).to(cohort.updates.dtype)
        return state, Decision(update=update, weights=weights)
