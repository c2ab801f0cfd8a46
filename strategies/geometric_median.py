"""Geometric median (RFA): the point whose distances to all updates have the smallest weighted sum.

Pillutla, Kakade and Harchaoui, "Robust Aggregation for Federated Learning", IEEE Transactions on Signal
Processing 70, 2022, Algorithm 2 (the smoothed Weiszfeld algorithm).

The paper stops after 3 steps because each costs a round of communication under secure aggregation; here the
server has all rows, and goes on until the point no longer moves, so that an update of any length has no
influence left. Steps start at the weighted mean, so that the result moves with the updates; ByzFL
starts at the origin, weighs clients alike, and takes 3 steps with smoothing 0.1. BatchNorm's running
statistics count in no distance; they become the same combination of the clients' as the parameters.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedsim.contracts import Cohort, Decision, Matrix, Server, Tensors, Vector
from strategies.rows import combination, measured, norms, require, require_cohort, shares


def smoothed_weiszfeld(
    updates: Matrix,
    masses: Vector,
    *,
    iterations: int,
    smoothing: float,
    tolerance: float,
    kept: Tensor | None = None,
) -> tuple[Vector, Vector]:
    """Approximate minimiser z of sum_i a_i |z - x_i|, as a convex combination of the rows.

    Args:
        updates: [n, d], the x_i.
        masses: [n], the a_i, not negative, with sum 1.
        iterations: most steps to take.
        smoothing: nu, in parameter units; a distance below it counts as nu in the step's division.
        tolerance: stop once a step is no longer than this share of the median distance to the rows.
        kept: [d] bool, the columns that distances are taken over; None: all.

    Returns:
        z, [d] float64, and its coefficients, [n] float64 with sum 1.
    """
    chosen, centre = masses, combination(updates, masses)
    for _ in range(iterations):
        distances = norms(updates, centre, kept=kept)
        pull = masses / distances.clamp(min=smoothing)
        chosen, before = pull / pull.sum(), centre
        centre = combination(updates, chosen)
        # Against the median distance: far rows would make any step look short beside the mean one.
        if torch.dist(measured(centre, kept), measured(before, kept)) <= tolerance * distances.median():
            break
    return centre, chosen


@dataclass(frozen=True, kw_only=True)
class GeometricMedian:
    """The geometric median of the updates.

    Attributes:
        iterations: most steps to take.
        smoothing: nu, in parameter units.
        tolerance: stop once a step is no longer than this share of the median distance to the updates.
        weighted: a client's mass is its share of the examples, as in the paper; else all have the same.
            It withstands hostile clients with less than half of the mass, and a client that overstates
            its examples takes mass.
    """

    iterations: int = 100
    smoothing: float = 1e-6
    tolerance: float = 1e-6
    weighted: bool = True

    def __post_init__(self) -> None:
        """Refuse values that divide by zero or never stop."""
        require(self.iterations >= 1, f"iterations must be at least 1, found {self.iterations}")
        require(0 < self.smoothing < torch.inf, f"smoothing must be above 0, found {self.smoothing}")
        require(0 <= self.tolerance < 1, f"tolerance must lie in [0, 1), found {self.tolerance}")

    def init(self, model: Vector) -> Tensors:
        """No state."""
        return {}

    def step(self, state: Tensors, cohort: Cohort, server: Server) -> tuple[Tensors, Decision]:
        """The median, and each update's share in it.

        Raises:
            RoundError: fewer than 1 reply.
        """
        require_cohort("geometric_median", cohort, 1, "allow fewer failures")
        centre, chosen = smoothed_weiszfeld(
            cohort.updates,
            shares(cohort, weighted=self.weighted),
            iterations=self.iterations,
            smoothing=self.smoothing,
            tolerance=self.tolerance,
            kept=cohort.layout.trained,
        )
        return state, Decision(update=centre.to(cohort.updates.dtype), weights=chosen)
