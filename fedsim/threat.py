"""The adversary: what it may know, what it may do, and the view cut down to what it was granted.

An attack acts at four places. `observe` watches the global model before each round's training and prepares
(statistics of drift, an optimised trigger); `corrupt` changes the program or the data of a malicious
client; `craft` rewrites the updates after training; `poison` says what a triggered example looks like, by
which success is measured. Each hook is a pure function of an explicit state of named tensors.
"""

from dataclasses import dataclass
from enum import IntEnum
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor

from fedsim.contracts import Batch, ClientData, DataSpec, LocalProgram, Matrix, Rule, Tensors, Vector
from fedsim.errors import RoundError
from fedsim.params import Layout


class Knowledge(IntEnum):
    """Levels of knowledge; each includes the ones before it."""

    OWN_DATA = 0  # the global model of every round; each malicious client its own data and update
    COLLUDERS = 1  # and the data and updates of all malicious clients
    EVERYTHING = 2  # and every client's update, and the server's rule as a query


@dataclass(frozen=True, kw_only=True)
class Threat:
    """Who attacks which federation; fixed for a run.

    Attributes:
        members: malicious partitions, ascending.
        window: first and last round of the attack, counted from 1, inclusive.
        clients: in the federation.
        clients_per_round: in a cohort.
        layout: names and shapes behind the d values of the shared model.
        spec: of the shared model's data; None where clients differ.
        pixels: a black and a white pixel as batches carry them, float64 [c, 1, 1] each; None unless all
            clients have images on one scale.
    """

    members: tuple[int, ...]
    window: tuple[int, int]
    clients: int
    clients_per_round: int
    layout: Layout
    spec: DataSpec | None
    pixels: tuple[Tensor, Tensor] | None = None


@dataclass(frozen=True, kw_only=True)
class View:
    """One round as an attack may see it; reading a field beyond `knows` raises RoundError.

    Attributes:
        knows: the level that was granted.
        round: counts from 1.
        clients: n, the size of the cohort.
        malicious: m, how many of it act together here, 1 at level OWN_DATA; in `observe`, where no cohort
            is known yet, all members.
        model: [d], the received model.
        integers: its integer tensors, by name.
        layout: of the d values.
        program: the honest program of a malicious client; its `model` is a template for functional calls.
        data: of the attack's own clients: all members at level COLLUDERS. At level OWN_DATA the acting
            client's, and nothing in `observe`, where nobody acts.
        own: [m, d], the honest updates of the attack's own clients, in partition order; after training only.
        examples: [m] int64, their training examples; after training only.
        updates: [n, d], all honest updates in partition order. Level EVERYTHING, after training only.
        places: m, the rows of `updates` that are the attack's own, ascending. Level EVERYTHING, after
            training only.
        rule: a query of the server's rule, [n, d] -> [d]. Level EVERYTHING, after training only.
    """

    knows: Knowledge
    round: int
    clients: int
    malicious: int
    model: Vector
    integers: Tensors
    layout: Layout
    program: LocalProgram
    data: tuple[ClientData, ...] | None = None
    own: Matrix | None = None
    examples: Tensor | None = None
    updates: Matrix | None = None
    places: tuple[int, ...] | None = None
    rule: Rule | None = None

    _needs: ClassVar[dict[str, Knowledge]] = {
        "updates": Knowledge.EVERYTHING,
        "places": Knowledge.EVERYTHING,
        "rule": Knowledge.EVERYTHING,
    }
    _late: ClassVar[frozenset[str]] = frozenset({"data", "own", "examples", "updates", "places", "rule"})

    def __post_init__(self) -> None:
        """Drop what is not granted, so that no detour reaches it."""
        for name, needed in View._needs.items():
            if self.knows < needed:
                object.__setattr__(self, name, None)

    def __getattribute__(self, name: str) -> Any:
        """Refuse what the granted level does not cover, and what is not there yet."""
        found = object.__getattribute__(self, name)
        if name not in View._late or found is not None:
            return found
        granted, needed = object.__getattribute__(self, "knows"), View._needs.get(name, Knowledge.OWN_DATA)
        if granted < needed:
            raise RoundError(
                f"The attack reads view.{name}, which needs knowledge {needed.name}, "
                f"but it declares {granted.name}."
            )
        raise RoundError(
            f"The attack reads view.{name}, which does not exist before training."
            if name != "data"
            else "The attack reads view.data in `observe`, which speaks for all malicious clients: "
            "that needs knowledge COLLUDERS, but it declares OWN_DATA."
        )


class Attack(Protocol):
    """An adversary: frozen hyperparameters, explicit state; one file in attacks/.

    An attack implements the hooks that it needs; `Passive` supplies the others.
    """

    @property
    def knows(self) -> Knowledge:
        """What it needs to know; the platform hides the rest."""
        ...

    def init(self, threat: Threat, rng: torch.Generator) -> Tensors:
        """State before round 1."""
        ...

    def observe(self, state: Tensors, view: View, rng: torch.Generator) -> Tensors:
        """The new state, once per round before training, for all members together; in the driver.

        Called in every round up to the last of the window, so also before its first. What is measured in a
        round (`poison`) uses the state of that round; after the window it stays as it is.
        """
        ...

    def corrupt(
        self, state: Tensors, member: int, program: LocalProgram, data: ClientData
    ) -> tuple[LocalProgram, ClientData]:
        """The program and data of one malicious client in one round of the window; in a worker.

        Args:
            state: after this round's `observe`.
            member: counts all malicious clients from 0, in partition order.
            program: of this round; change it with `dataclasses.replace`.
            data: the client's own.
        """
        ...

    def craft(self, state: Tensors, view: View, rng: torch.Generator) -> Matrix:
        """[m, d]: the rows that the malicious clients send in place of `view.own`."""
        ...

    def poison(self, state: Tensors, batch: Batch) -> Batch:
        """The batch with the attack's trigger and the label that the attack wants.

        It keeps the order and number of examples. Success is the share of correct answers among examples
        whose label this changes, so examples of the target class never count.
        """
        ...


@dataclass(frozen=True, kw_only=True)
class Passive:
    """An adversary that does nothing: its members take part honestly.

    An attack inherits from it and overrides the hooks it needs. By itself it is the control without an
    attack, in which the same clients are in the same cohorts.
    """

    knows: ClassVar[Knowledge] = Knowledge.OWN_DATA

    def init(self, threat: Threat, rng: torch.Generator) -> Tensors:
        """No state."""
        return {}

    def observe(self, state: Tensors, view: View, rng: torch.Generator) -> Tensors:
        """Look away."""
        return state

    def corrupt(
        self, state: Tensors, member: int, program: LocalProgram, data: ClientData
    ) -> tuple[LocalProgram, ClientData]:
        """Train honestly."""
        return program, data

    def craft(self, state: Tensors, view: View, rng: torch.Generator) -> Matrix:
        """Send the honest updates, [m, d]."""
        own: Matrix = view.own  # type: ignore[assignment]  # __getattribute__ refuses None
        return own

    def poison(self, state: Tensors, batch: Batch) -> Batch:
        """Leave the batch as it is."""
        return batch


def overrides(attack: Attack, hook: str) -> bool:
    """Does the attack implement this hook, rather than inherit it from `Passive`?"""
    return getattr(type(attack), hook, None) is not getattr(Passive, hook)
