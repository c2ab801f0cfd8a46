"""FedAvg, and a few epochs of local training before a client's model is used.

The fine-tuning baseline of Yu et al., "Salvaging Federated Learning by Local Adaptation", 2020, section 3.
What is tuned is measured and thrown away: the federation itself is that of `supervised`, bit for bit.
"""

from dataclasses import dataclass, replace

from clients.models.checks import at_least
from clients.supervised import Supervised
from fedsim.contracts import DataSpec, LocalProgram, Optimizer


@dataclass(frozen=True, kw_only=True)
class FineTune(Supervised):
    """As `supervised`, tuned before every evaluation.

    Attributes:
        tune_epochs: passes over the client's training split.
        tune_optimizer: fresh at every evaluation; unset: `optimizer`. The schedule scales it too.
    """

    tune_epochs: int = 1
    tune_optimizer: Optimizer | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least("tune_epochs", self.tune_epochs, 1)

    def build_program(self, spec: DataSpec, round: int) -> LocalProgram:
        """The supervised program with a phase that runs before evaluations only."""
        program = super().build_program(spec, round)
        method = self if self.tune_optimizer is None else replace(self, optimizer=self.tune_optimizer)
        tuned = method.phase(program.model, spec, round, epochs=self.tune_epochs)
        return replace(program, tune=(tuned,))
