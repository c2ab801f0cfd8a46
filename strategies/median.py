"""Coordinate-wise median: each parameter moves by the median of what the clients ask for it.

Yin, Chen, Ramchandran and Bartlett, "Byzantine-Robust Distributed Learning: Towards Optimal Statistical
Rates", ICML 2018, Definition 1 and Algorithm 1, option I.

For an even number of clients the median is the mean of the two middle values, as NumPy has it.
`torch.median`, and with it ByzFL on torch tensors, takes the lower one, which pulls every update towards
minus infinity.
"""

from dataclasses import dataclass

from fedsim.contracts import Cohort, Decision, Matrix, Server, Tensors, Vector
from strategies.rows import by_column, require_cohort, sorted_columns


def coordinate_median(updates: Matrix) -> Vector:
    """The median of each column.

    Args:
        updates: [n, d], n at least 1.

    Returns:
        [d] in the type of `updates`.
    """
    return by_column(updates, _middle)


def _middle(block: Matrix) -> Vector:
    n = len(block)
    ordered = sorted_columns(block)[(n - 1) // 2 : n // 2 + 1]
    return ordered.double().mean(dim=0)


@dataclass(frozen=True, kw_only=True)
class Median:
    """The median of each coordinate; clients count alike, and none has a weight.

    It withstands fewer than half of the clients.
    """

    def init(self, model: Vector) -> Tensors:
        """No state."""
        return {}

    def step(self, state: Tensors, cohort: Cohort, server: Server) -> tuple[Tensors, Decision]:
        """The median of the updates.

        Raises:
            RoundError: fewer than 1 reply.
        """
        require_cohort("median", cohort, 1, "allow fewer failures")
        return state, Decision(update=coordinate_median(cohort.updates))
