"""Norm clipping with optional noise (weak differential privacy): no update moves the model far.

Sun, Kairouz, Suresh and McMahan, "Can You Really Backdoor Federated Learning?", 2019 (arXiv:1911.07963),
the defences "norm thresholding of updates" and "(weak) differential privacy".

The noise is too small for a privacy guarantee, hence "weak". The paper adds it to the aggregate; so does
this rule, once per round, with the standard deviation given here and not divided by n.
BatchNorm's running statistics get none and count in no norm (see `strategies.layers.average_statistics`).
"""

from dataclasses import dataclass

import torch

from fedsim.contracts import Cohort, Decision, Server, Tensors, Vector
from strategies.layers import average_statistics
from strategies.noise import gaussian
from strategies.rows import clip_factors, combination, norms, require, require_cohort, shares


@dataclass(frozen=True, kw_only=True)
class NormClipping:
    """The mean of updates that are cut to a Euclidean norm.

    Attributes:
        bound: M, the largest norm, in parameter units.
        noise: standard deviation of the noise added to every coordinate, in parameter units.
        weighted: by the number of training examples; else all clients count alike.
    """

    bound: float
    noise: float = 0.0
    weighted: bool = True

    def __post_init__(self) -> None:
        """Refuse values with which nothing moves or all is noise."""
        require(0 < self.bound < torch.inf, f"bound must be above 0, found {self.bound}")
        require(0 <= self.noise < torch.inf, f"noise must be at least 0, found {self.noise}")

    def init(self, model: Vector) -> Tensors:
        """No state."""
        return {}

    def step(self, state: Tensors, cohort: Cohort, server: Server) -> tuple[Tensors, Decision]:
        """The mean; each client weighs its share times the factor it was cut by.

        Raises:
            RoundError: fewer than 1 reply.
        """
        require_cohort("norm_clipping", cohort, 1, "allow fewer failures")
        lengths = norms(cohort.updates, kept=cohort.layout.trained)
        weights = shares(cohort, weighted=self.weighted) * clip_factors(lengths, self.bound)
        update = combination(cohort.updates, weights)
        update += gaussian(update, self.noise, server.rng)
        average_statistics(update, cohort, weights)
        return state, Decision(update=update.to(cohort.updates.dtype), weights=weights)
