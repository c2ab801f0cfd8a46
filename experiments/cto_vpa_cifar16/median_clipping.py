"""The plain mean of updates, each cut to the round's median norm.

The median runs over the whole cohort, since a server knows no benign clients; of an even number of norms it
is the lower of the two middle ones. No clipping constant has to be chosen, and size gains attackers nothing.
"""

from dataclasses import dataclass

import torch

from fedsim.contracts import Cohort, Decision, Server, Tensors, Vector


@dataclass(frozen=True, kw_only=True)
class MedianClipping:
    """Every client counts alike."""

    def init(self, model: Vector) -> Tensors:
        """No state."""
        return {}

    def step(self, state: Tensors, cohort: Cohort, server: Server) -> tuple[Tensors, Decision]:
        """The mean; a client's weight is 1 / n times the factor it was cut by."""
        kept = cohort.layout.trained  # without BatchNorm's statistics, where there are any
        counted = cohort.updates if kept is None else cohort.updates[:, kept]
        norms = torch.linalg.vector_norm(counted, dim=1, dtype=torch.float64)
        bound = norms.median()
        weights = torch.where(norms > bound, bound / norms, 1.0) / len(norms)
        update = (cohort.updates.double() * weights[:, None]).sum(dim=0)
        return state, Decision(update=update.to(cohort.updates.dtype), weights=weights)
