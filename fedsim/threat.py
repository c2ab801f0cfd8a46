"""What an adversary may know, and the view cut down to it."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedsim.contracts import Batch, ClientData, LocalProgram, Matrix, Rule, Tensors
from fedsim.errors import RoundError


class Knowledge(IntEnum):
    """Levels of knowledge; each includes the ones before it."""

    OWN_DATA = 0  # the received model, own data, own update
    COLLUDERS = 1  # and the data and updates of all malicious clients of the round
    EVERYTHING = 2  # and every client's update, and the server's rule as a query


@dataclass(frozen=True, kw_only=True)
class View:
    """One round as an attack may see it; reading a field beyond `knows` raises RoundError.

    Attributes:
        knows: the level that was granted.
        round: counts from 1.
        clients: n, the size of the cohort.
        malicious: m, how many of them are malicious; 1 at level OWN_DATA.
        model: [d], the received model.
        own: [m, d], the honest updates of the attack's own clients, in partition order.
        updates: [n, d], all honest updates in partition order. Level EVERYTHING.
        rule: a query of the server's rule, [n, d] -> [d]. Level EVERYTHING.
    """

    knows: Knowledge
    round: int
    clients: int
    malicious: int
    model: Tensor
    own: Tensor
    updates: Tensor
    rule: Rule

    _needs: ClassVar[dict[str, Knowledge]] = {
        "updates": Knowledge.EVERYTHING,
        "rule": Knowledge.EVERYTHING,
    }

    def __post_init__(self) -> None:
        """Drop what is not granted, so that no detour reaches it."""
        for name, needed in View._needs.items():
            if self.knows < needed:
                object.__setattr__(self, name, None)

    def __getattribute__(self, name: str) -> Any:
        """Refuse what the granted level does not cover."""
        needed = View._needs.get(name, Knowledge.OWN_DATA)
        granted = object.__getattribute__(self, "knows")
        if granted < needed:
            raise RoundError(
                f"The attack reads view.{name}, which needs knowledge {needed.name}, "
                f"but it declares {granted.name}."
            )
        return object.__getattribute__(self, name)


class Passive:
    """The hooks of an attack that does nothing; an attack overrides those it needs."""

    def init(self, members: Sequence[int], rng: torch.Generator) -> Tensors:
        """No state."""
        return {}

    def corrupt(
        self, state: Tensors, member: int, program: LocalProgram, data: ClientData
    ) -> tuple[LocalProgram, ClientData]:
        """Train honestly."""
        return program, data

    def craft(self, state: Tensors, view: View, rng: torch.Generator) -> Matrix:
        """Send the honest updates, [m, d]."""
        return view.own

    def poison(self, state: Tensors, batch: Batch) -> Batch:
        """Leave the batch as it is."""
        return batch
