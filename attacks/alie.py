"""A Little Is Enough: stay within the spread of honest updates, all on the same side.

Baruch, Baruch and Goldberg, "A Little Is Enough: Circumventing Defenses For Distributed Learning", NeurIPS
2019, Algorithm 3. Every malicious row is mean - z * std, coordinate by coordinate, with the largest z that
lets s = floor(n / 2 + 1) - m honest clients look more extreme than the attackers:

    z_max = Phi^-1((n - m - s) / (n - m)).

The paper's experiments use z = 1 to 1.5 with 24 % malicious; z_max is 0.36 there. The argument leaves the
side open: the paper's code subtracts from gradients, this file from updates, which point the other way.

Mean and deviation (divided by the number of rows, as in the paper's code) are estimated from the malicious
clients' own honest updates, as in the paper, or from everybody's. A round with one malicious client has
deviation 0: it sends its honest update.
"""

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import Literal

import torch

from attacks.estimates import Estimating, together
from attacks.programs import check_above_zero
from fedsim.contracts import Matrix, Tensors
from fedsim.errors import RoundError
from fedsim.threat import View


def largest_unnoticed_z(clients: int, malicious: int) -> float:
    """z_max for n clients, m of them malicious; 0 where the formula gives a share of one half or less.

    Raises:
        RoundError: malicious clients are the majority, for which the formula has no meaning.
    """
    honest, supporters = clients - malicious, math.floor(clients / 2 + 1) - malicious
    if supporters < 1:
        raise RoundError(
            f"ALIE's z is defined for a minority of malicious clients, found {malicious} of {clients}: set "
            "attack.z, or lower attack.malicious."
        )
    share = (honest - supporters) / honest
    return NormalDist().inv_cdf(share) if share > 0.5 else 0.0


@dataclass(frozen=True, kw_only=True)
class Alie(Estimating):
    """All malicious clients send the same row; see `Estimating` for `sees`.

    Attributes:
        z: deviations from the mean, above 0; "max": z_max of the round.
    """

    z: float | Literal["max"] = "max"

    def __post_init__(self) -> None:
        if self.z != "max":
            check_above_zero("z", self.z)

    def craft(self, state: Tensors, view: View, rng: torch.Generator) -> Matrix:
        """[m, d]."""
        z = largest_unnoticed_z(view.clients, view.malicious) if self.z == "max" else self.z
        honest = self.honest(view)
        return together(honest.mean(dim=0) - z * honest.std(dim=0, correction=0), view)
