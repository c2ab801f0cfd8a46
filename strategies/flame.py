"""FLAME: keep the largest cluster of directions, clip to the median length, add noise.

Nguyen et al., "FLAME: Taming Backdoors in Federated Learning", USENIX Security 2022, Algorithm 1 and
section 4.

The clipping bound is the median over the lengths of all n updates, as in line 7, and not of the admitted
ones alone. Line 6 compares local models, `angles = "models"`; section 4 speaks of updates in places,
and `angles = "updates"` compares those. HDBSCAN is scikit-learn's, with the paper's parameters (see
`strategies.clusters`): more than half of the clients per cluster, so that there is at most one.
BatchNorm's running statistics get no noise, and count in no length or angle
(see `strategies.layers.average_statistics`).
"""

from dataclasses import dataclass
from typing import Literal

import torch

from fedsim.contracts import Cohort, Decision, Matrix, Server, SmallestCohort, Tensors, Vector
from fedsim.errors import RoundError
from strategies.clusters import density_clusters
from strategies.layers import average_statistics
from strategies.noise import gaussian
from strategies.rows import clip_factors, combination, cosine_distances, norms, require, require_enough


def admitted(distances: Matrix) -> Vector:
    """Who belongs to the cluster of more than half of the clients.

    Args:
        distances: [n, n], cosine distances.

    Returns:
        [n] bool.
    """
    labels = density_clusters(distances, smallest=len(distances) // 2 + 1, neighbours=1, single=True)
    return torch.tensor([label >= 0 for label in labels], device=distances.device)


@dataclass(frozen=True, kw_only=True)
class Flame:
    """The plain mean of the admitted updates, clipped and noised.

    Attributes:
        noise: lambda; the noise's standard deviation is lambda times the clipping bound. The paper takes
            0.001 for images; lambda = sqrt(2 ln(1.25 / delta)) / epsilon for differential privacy.
        angles: between the clients' models, or between their updates.
    """

    noise: float = 0.001
    angles: Literal["models", "updates"] = "models"

    def __post_init__(self) -> None:
        """Refuse negative noise."""
        require(0 <= self.noise < torch.inf, f"noise must be at least 0, found {self.noise}")

    @property
    def smallest_cohort(self) -> SmallestCohort:
        """See `fedsim.contracts.Strategy`."""
        return SmallestCohort("flame", 3, "choose another strategy.kind")

    def init(self, model: Vector) -> Tensors:
        """No state."""
        return {}

    def step(self, state: Tensors, cohort: Cohort, server: Server) -> tuple[Tensors, Decision]:
        """The mean; an admitted client weighs 1/l times the factor it was cut by, others 0.

        Raises:
            RoundError: fewer than 3 replies, which have no majority; or no cluster.
        """
        require_enough(self.smallest_cohort, cohort)
        shift = server.model if self.angles == "models" else None
        kept = cohort.layout.trained
        inside = admitted(cosine_distances(cohort.updates, shift=shift, kept=kept))
        if not bool(inside.any()):
            raise RoundError(
                f"Round {cohort.round}: flame found no cluster of more than half of the "
                f"{len(inside)} clients: raise federation.clients_per_round, or choose another strategy.kind."
            )
        lengths = norms(cohort.updates, kept=kept)
        bound = float(lengths.quantile(0.5))
        weights = inside * clip_factors(lengths, bound) / inside.sum()
        update = combination(cohort.updates, weights)
        update += gaussian(update, self.noise * bound, server.rng)
        average_statistics(update, cohort, weights)
        return state, Decision(update=update.to(cohort.updates.dtype), weights=weights)
