"""Local training: every client keeps a model of its own, and nothing is federated.

The baseline that a personalised federation has to beat. No tensor leaves a client, so the server's model
is empty and only the clients' own metrics exist; what a rule does is of no effect.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

from clients.supervised import Supervised
from fedsim.contracts import DataSpec, LocalProgram


@dataclass(frozen=True, kw_only=True)
class Local(Supervised):
    """As `supervised`, but all clients go on from their own tensors; they start from equal ones."""

    federates: ClassVar[bool] = False

    def build_program(self, spec: DataSpec, round: int) -> LocalProgram:
        """The supervised program with every tensor private."""
        return replace(super().build_program(spec, round), is_shared=nothing)


def nothing(name: str) -> bool:
    """A predicate that accepts no tensor."""
    return False
