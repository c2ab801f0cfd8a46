"""Centred clipping: clip what lies far from the last round's aggregate.

Karimireddy, He and Jaggi, "Learning from History for Byzantine Robust Optimization", ICML 2021,
"Centered Clipping".

The paper's workers send momenta; here clients send the updates of their local training, and the last round's
aggregate is the centre. Without history, before round 1, the centre is the origin, as in ByzFL.
It is not carried over into BatchNorm's running statistics, which count in no distance
(see `strategies.layers.average_statistics`).
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedsim.contracts import Cohort, Decision, Matrix, Server, Tensors, Vector
from strategies.layers import average_statistics
from strategies.rows import clip_factors, combination, norms, require, require_cohort


def clip_about(
    updates: Matrix, centre: Vector, radius: float, *, kept: Tensor | None = None
) -> tuple[Vector, Vector]:
    """One step: the centre plus the mean of the differences to it, each cut to length `radius`.

    Args:
        updates: [n, d], the x_i.
        centre: [d] float64, v.
        radius: tau, in parameter units.
        kept: [d] bool, the columns that distances are taken over; None: all.

    Returns:
        [d] float64, and the factors min(1, tau / |x_i - v|) times 1/n, [n] float64.
    """
    shares = clip_factors(norms(updates, centre, kept=kept), radius) / len(updates)
    return centre * (1 - shares.sum()) + combination(updates, shares), shares


@dataclass(frozen=True, kw_only=True)
class CentredClipping:
    """The centre, moved by clipped differences.

    Attributes:
        radius: tau, in parameter units; a hostile client moves the aggregate by at most tau / n per step.
        iterations: L, steps per round.
    """

    radius: float
    iterations: int = 1

    def __post_init__(self) -> None:
        """Refuse values with which nothing moves."""
        require(0 < self.radius < torch.inf, f"radius must be above 0, found {self.radius}")
        require(self.iterations >= 1, f"iterations must be at least 1, found {self.iterations}")

    def init(self, model: Vector) -> Tensors:
        """`centre` [d] float64, the last aggregate."""
        return {"centre": torch.zeros_like(model, dtype=torch.float64)}

    def step(self, state: Tensors, cohort: Cohort, server: Server) -> tuple[Tensors, Decision]:
        """The new centre; each client weighs 1/n times the factor it was cut by in the last step.

        Raises:
            RoundError: fewer than 1 reply.
        """
        require_cohort("centred_clipping", cohort, 1, "allow fewer failures")
        centre = state["centre"]
        for _ in range(self.iterations):
            centre, weights = clip_about(cohort.updates, centre, self.radius, kept=cohort.layout.trained)
        update = centre.to(cohort.updates.dtype, copy=True)
        average_statistics(update, cohort, weights)
        return {"centre": centre}, Decision(update=update, weights=weights)
