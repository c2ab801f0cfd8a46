"""What colluders take for the honest updates: their own, or with full knowledge everybody's."""

from dataclasses import dataclass
from typing import Literal

import torch

from fedsim.contracts import Matrix, Tensors
from fedsim.errors import ConfigError
from fedsim.threat import Knowledge, Passive, Threat, View


@dataclass(frozen=True, kw_only=True)
class Estimating(Passive):
    """An attack on the updates that needs statistics of honest ones.

    Attributes:
        sees: "colluders": the statistics are those of the malicious clients' own honest updates, of which at
            least two are needed; "everything": of all honest updates of the round, the malicious clients' own
            among them.
    """

    sees: Literal["colluders", "everything"] = "colluders"

    @property
    def knows(self) -> Knowledge:  # type: ignore[override]  # depends on the file's choice
        """COLLUDERS, or EVERYTHING."""
        return Knowledge.COLLUDERS if self.sees == "colluders" else Knowledge.EVERYTHING

    def init(self, threat: Threat, rng: torch.Generator) -> Tensors:
        """No state.

        Raises:
            ConfigError: a single malicious client has nothing to estimate from.
        """
        if self.sees == "colluders" and len(threat.members) < 2:
            raise ConfigError(
                f"attack.malicious: {type(self).__name__} estimates from the malicious clients' own "
                f"updates and needs at least 2 of them, found {len(threat.members)}; or set "
                'attack.sees = "everything".'
            )
        return {}

    def honest(self, view: View) -> Matrix:
        """[k, d] float64, the updates to estimate from, k = m or n."""
        rows: Matrix | None = view.own if self.sees == "colluders" else view.updates
        return torch.as_tensor(rows).double()


def together(row: torch.Tensor, view: View) -> Matrix:
    """[d] -> [m, d]: all malicious clients send the same."""
    return row.to(view.model.dtype).expand(view.malicious, -1).clone()
