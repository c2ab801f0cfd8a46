"""Model replacement: scale the poisoned update up until the average is the attacker's model.

Bagdasaryan et al., "How To Backdoor Federated Learning", AISTATS 2020, section 4.2: upload
theta_g + gamma (theta_m - theta_g). With gamma = n / eta, n clients in the cohort and server rate eta, the
mean of a cohort whose honest updates cancel is theta_m. The paper's largest gamma is 100, for a mean that
divides by 100; smaller ones pass bounds on norms.

On top of BadNets; with `scale = 1` it is BadNets. Departure: several malicious clients share the work, so
"replace" means n / m, m of them in the round; and it takes all clients for equally large.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch

from attacks.badnets import BadNets
from attacks.programs import check_above_zero, clip_rows
from fedsim.contracts import Matrix, Tensors
from fedsim.threat import Knowledge, View


@dataclass(frozen=True, kw_only=True)
class ModelReplacement(BadNets):
    """A backdoor whose update is boosted.

    See `BadNets` for the other attributes.

    Attributes:
        scale: gamma; "replace": n / m.
        norm_bound: largest Euclidean norm of an upload ("constrain and scale" to pass a known bound); unset:
            no bound.
    """

    knows: ClassVar[Knowledge] = Knowledge.COLLUDERS  # how many attack in this round
    scale: float | Literal["replace"] = "replace"
    norm_bound: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.scale != "replace":
            check_above_zero("scale", self.scale)
        if self.norm_bound is not None:
            check_above_zero("norm_bound", self.norm_bound)

    def craft(self, state: Tensors, view: View, rng: torch.Generator) -> Matrix:
        """[m, d], each own update times gamma."""
        gamma = view.clients / view.malicious if self.scale == "replace" else self.scale
        rows: Matrix = super().craft(state, view, rng) * gamma
        return rows if self.norm_bound is None else clip_rows(rows, self.norm_bound, view.layout.trained)
