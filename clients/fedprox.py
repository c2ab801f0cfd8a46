"""FedProx: local training that is held near the received model.

Li et al., "Federated Optimization in Heterogeneous Networks", MLSys 2020, Algorithm 2, equation 2:
h(w) = F(w) + mu / 2 |w - w_t|^2. The inexactness gamma of the paper is the number of epochs here. The
distance runs over the shared parameters; statistics such as those of BatchNorm have no part in it.
"""

from dataclasses import dataclass, replace

from clients.proximal import pulled, refuse_negative
from clients.supervised import Supervised
from fedsim.contracts import DataSpec, LocalProgram


@dataclass(frozen=True, kw_only=True)
class FedProx(Supervised):
    """As `supervised`, with the proximal term.

    Attributes:
        mu: weight of the term, at least 0; 0 is plain local training.
    """

    mu: float

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse_negative("mu", self.mu)

    def build_program(self, spec: DataSpec, round: int) -> LocalProgram:
        """The supervised program with mu / 2 times the squared distance added to its loss."""
        program = super().build_program(spec, round)
        (phase,) = program.phases
        losses = pulled(phase.losses, program.model, self.mu)
        return replace(program, phases=(replace(phase, losses=losses),))
