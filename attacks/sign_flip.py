"""Sign flip: send the honest update backwards.

Li et al., "RSA: Byzantine-Robust Stochastic Aggregation Methods for Distributed Learning from Heterogeneous
Datasets", AAAI 2019 (factor -4); Karimireddy et al., "Byzantine-Robust Learning on Heterogeneous Datasets via
Bucketing", ICLR 2022 (factor -1, called bit flipping).

Row = -scale * own update. The plain mean of n equal updates, m of them hostile, turns around where
scale > n / m - 1; below that it is only slowed down.
"""

from dataclasses import dataclass

import torch

from attacks.programs import check_above_zero
from fedsim.contracts import Matrix, Tensors
from fedsim.threat import Passive, View


@dataclass(frozen=True, kw_only=True)
class SignFlip(Passive):
    """Each malicious client by itself.

    Attributes:
        scale: factor on the reversed update, above 0.
    """

    scale: float = 4.0

    def __post_init__(self) -> None:
        check_above_zero("scale", self.scale)

    def craft(self, state: Tensors, view: View, rng: torch.Generator) -> Matrix:
        """[m, d]."""
        return super().craft(state, view, rng) * -self.scale
