"""Inner product manipulation: send a negative multiple of the honest mean.

Xie, Koyejo and Gupta, "Fall of Empires: Breaking Byzantine-tolerant SGD by Inner Product Manipulation", UAI
2019, section 4. Every malicious row is -epsilon * mean of the honest updates, so that the inner product of
that mean and the aggregate is negative. The plain mean falls where epsilon > (n - m) / m; a small epsilon
(0.1 to 0.5) passes Krum and the median, a large one (10 and more) is for the mean.

Departure: the paper's attacker knows the honest updates (`sees = "everything"`); by default the mean is that
of the malicious clients' own.
"""

from dataclasses import dataclass

import torch

from attacks.estimates import Estimating, together
from attacks.programs import check_above_zero
from fedsim.contracts import Matrix, Tensors
from fedsim.threat import View


@dataclass(frozen=True, kw_only=True)
class Ipm(Estimating):
    """All malicious clients send the same row; see `Estimating` for `sees`.

    Attributes:
        epsilon: above 0.
    """

    epsilon: float = 0.5

    def __post_init__(self) -> None:
        check_above_zero("epsilon", self.epsilon)

    def craft(self, state: Tensors, view: View, rng: torch.Generator) -> Matrix:
        """[m, d]."""
        return together(self.honest(view).mean(dim=0) * -self.epsilon, view)
