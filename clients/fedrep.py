"""FedRep: each round first trains the client's own head, then the shared representation.

Collins et al., "Exploiting Shared Representations for Personalized Federated Learning", ICML 2021,
Algorithm 1: tau head updates with the representation frozen, then updates of the representation with the
head frozen. The paper's rounds start from a kept head, and so do these.
"""

from dataclasses import dataclass, replace

from clients.fedper import FedPer
from clients.models.checks import at_least
from fedsim.contracts import DataSpec, LocalProgram


@dataclass(frozen=True, kw_only=True)
class FedRep(FedPer):
    """Two phases.

    Attributes:
        head_epochs: passes over the training split in which only `private` parts are trained; `epochs`
            counts those of the rest.
    """

    head_epochs: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least("head_epochs", self.head_epochs, 1)

    def build_program(self, spec: DataSpec, round: int) -> LocalProgram:
        """The head's phase, then the body's."""
        program = super().build_program(spec, round)
        head = self.phase(
            program.model, spec, round, trains=lambda name: not self.is_shared(name), epochs=self.head_epochs
        )
        body = self.phase(program.model, spec, round, trains=self.is_shared)
        return replace(program, phases=(head, body))
