"""Trimmed mean: each parameter's largest and smallest values are left out of the mean.

Yin, Chen, Ramchandran and Bartlett, "Byzantine-Robust Distributed Learning: Towards Optimal Statistical
Rates", ICML 2018, Definition 2 and Algorithm 1, option II.

The paper gives the share beta of values to remove from each end; here `byzantine` gives their number, beta n,
as in ByzFL, so that it need not be rounded.
"""

from dataclasses import dataclass

from fedsim.contracts import Cohort, Decision, Matrix, Server, SmallestCohort, Tensors, Vector
from strategies.rows import by_column, require_byzantine, require_enough, sorted_columns


def trimmed_mean(updates: Matrix, byzantine: int) -> Vector:
    """The mean of each column without its `byzantine` largest and smallest values.

    Args:
        updates: [n, d].
        byzantine: f, values to remove at each end; n must be above 2f.

    Returns:
        [d] in the type of `updates`; the mean is taken in float64.
    """

    def kept(block: Matrix) -> Vector:
        return sorted_columns(block)[byzantine : len(block) - byzantine].double().mean(dim=0)

    return by_column(updates, kept)


@dataclass(frozen=True, kw_only=True)
class TrimmedMean:
    """The trimmed mean of each coordinate; clients count alike, and none has a weight.

    Attributes:
        byzantine: f, hostile clients to withstand; n must be above 2f. 0: the plain mean.
    """

    byzantine: int

    def __post_init__(self) -> None:
        """Refuse a negative number."""
        require_byzantine(self.byzantine)

    @property
    def smallest_cohort(self) -> SmallestCohort:
        """See `fedsim.contracts.Strategy`."""
        return SmallestCohort(
            f"trimmed_mean with byzantine={self.byzantine}",
            2 * self.byzantine + 1,
            "lower strategy.byzantine",
        )

    def init(self, model: Vector) -> Tensors:
        """No state."""
        return {}

    def step(self, state: Tensors, cohort: Cohort, server: Server) -> tuple[Tensors, Decision]:
        """The trimmed mean of the updates.

        Raises:
            RoundError: 2f or fewer replies, so that nothing is left.
        """
        require_enough(self.smallest_cohort, cohort)
        return state, Decision(update=trimmed_mean(cohort.updates, self.byzantine))
