"""The attack's place in a round: who is malicious, when, and what each hook is shown.

The driver calls `observe` before training and `craft` after it; `corrupt` travels to the workers in the
order, as the attack's state (`fedsim.federation.Corruption`).
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from fedsim import rng
from fedsim.contracts import (
    Batch,
    Cohort,
    FederatedData,
    LocalProgram,
    Rule,
    Server,
    Strategy,
    Tensors,
    Vector,
)
from fedsim.errors import ConfigError, PluginError, RoundError, attributed
from fedsim.federation import Corruption
from fedsim.run.assembly import Parts
from fedsim.run.decision import require_tensors
from fedsim.threat import Attack, Knowledge, Threat, View, overrides


@dataclass(frozen=True)
class Adversary:
    """An attack together with its members and its window of rounds.

    Attributes:
        attack: the hooks.
        threat: members and window, as the attack is told of them.
        forced: are all members in every cohort of the window?
        parts: of the run.
    """

    attack: Attack
    threat: Threat
    forced: bool
    parts: Parts

    @classmethod
    def of(cls, parts: Parts) -> "Adversary | None":
        """The experiment's adversary, if it has one.

        Raises:
            FedsimError: with exit code 2: the attack refuses its keys, the data or the window. Asked here, it
                does so before the clean run is played.
        """
        table, attack, federation = (
            parts.experiment.attack,
            parts.plugins.attack,
            parts.experiment.federation,
        )
        if table is None or attack is None:
            return None
        threat = Threat(
            members=parts.malicious,
            window=table.window or (1, parts.experiment.rounds),
            clients=federation.clients,
            clients_per_round=federation.clients_per_round,
            layout=parts.layout,
            spec=parts.data.spec,
            pixels=_pixels(parts.data),
        )
        found = cls(attack, threat, table.participation == "forced", parts)
        found.init()
        return found

    @property
    def hostile(self) -> bool:
        """Does the attack do anything? If not, there is nobody to detect."""
        return any(overrides(self.attack, hook) for hook in ("observe", "corrupt", "craft"))

    @property
    def measures(self) -> bool:
        """Does the attack have a notion of success on single examples?"""
        return overrides(self.attack, "poison")

    def init(self) -> Tensors:
        """The attack's state before round 1.

        Raises:
            PluginError: its code raised, or returned something else.
        """
        what = f"attack.kind: {type(self.attack).__name__}.init"
        with attributed(what, PluginError):
            state = self.attack.init(self.threat, rng.stream(self.parts.seed, "attack-init"))
        require_tensors(state, f"{what} returned", PluginError)
        return state

    def active(self, round: int) -> bool:
        """Is this round in the window?"""
        first, last = self.threat.window
        return first <= round <= last

    def forced_members(self, round: int) -> tuple[int, ...]:
        """Who must be in this round's cohort."""
        return self.threat.members if self.forced and self.active(round) else ()

    def observe(self, state: Tensors, round: int, model: Vector, integers: Tensors) -> Tensors:
        """The attack's state for this round; unchanged after the window.

        Raises:
            RoundError: its code raised, or returned something else.
        """
        if round > self.threat.window[1] or not self.threat.members or not overrides(self.attack, "observe"):
            return state
        clients = self.parts.data.clients
        together = self.attack.knows >= Knowledge.COLLUDERS or len(self.threat.members) == 1
        view = View(
            malicious=len(self.threat.members),
            data=tuple(clients[member] for member in self.threat.members) if together else None,
            **self._common(round, model, integers),
        )
        what = f"Round {round}: {type(self.attack).__name__}.observe"
        with attributed(what, RoundError):
            after = self.attack.observe(state, view, rng.stream(self.parts.seed, "attack-observe", round))
        require_tensors(after, f"{what} returned", RoundError)
        return after

    def corruption(self, state: Tensors, round: int) -> Corruption | None:
        """What workers need to corrupt this round's malicious clients; None where nobody is corrupted."""
        if not self.active(round) or not overrides(self.attack, "corrupt"):
            return None
        return Corruption(self.threat.members, state)

    def poison(self, state: Tensors) -> Callable[[Batch], Batch] | None:
        """What makes a triggered batch in this state; None where success has no meaning."""
        return (lambda batch: self.attack.poison(state, batch)) if self.measures else None

    def rewrite(self, state: Tensors, cohort: Cohort, model: Vector, integers: Tensors, rule: Rule) -> Cohort:
        """The cohort with the malicious clients' rows in place of their honest ones.

        Raises:
            RoundError: the attack made rows of another shape, or values that are not finite.
        """
        places = self.places(cohort)
        if not self.active(cohort.round) or not places or not overrides(self.attack, "craft"):
            return cohort
        common = self._common(cohort.round, model, integers) | {"updates": cohort.updates, "rule": rule}
        updates = cohort.updates.clone()
        # Without collusion each malicious client acts alone, on its own update and its own chance.
        alone = self.attack.knows < Knowledge.COLLUDERS
        for group in [[place] for place in places] if alone else [places]:
            updates[group] = self._craft(state, cohort, group, common)
        return replace(cohort, updates=updates)

    def places(self, cohort: Cohort) -> list[int]:
        """The malicious clients' rows."""
        members = set(self.threat.members)
        return [place for place, partition in enumerate(cohort.partitions) if partition in members]

    def _common(self, round: int, model: Vector, integers: Tensors) -> dict[str, Any]:
        return {
            "knows": self.attack.knows,
            "round": round,
            "clients": self.threat.clients_per_round,
            "model": model.clone(),
            "integers": integers,
            "layout": self.threat.layout,
            "program": self._program(round),
        }

    def _program(self, round: int) -> LocalProgram:
        return self.parts.program_of(self.threat.members[0], round)

    def _craft(
        self, state: Tensors, cohort: Cohort, group: list[int], common: dict[str, Any]
    ) -> torch.Tensor:
        acting = [cohort.partitions[place] for place in group]
        view = View(
            malicious=len(group),
            data=tuple(self.parts.data.clients[partition] for partition in acting),
            own=cohort.updates[group],
            examples=cohort.examples[group],
            places=tuple(group),
            **common | {"clients": len(cohort.partitions)},
        )
        chance = rng.stream(self.parts.seed, "attack", cohort.round, acting[0])
        name, wanted = type(self.attack).__name__, (len(group), cohort.updates.shape[1])
        with attributed(f"Round {cohort.round}: {name}.craft", RoundError):
            crafted = self.attack.craft(state, view, chance)
            found, finite = tuple(crafted.shape), bool(torch.isfinite(crafted).all())
        if found != wanted or not finite:
            made = f"rows of shape {found}" if finite else "rows that are not finite"
            raise RoundError(
                f"Round {cohort.round}: the attack {name} made {made}, wanted finite rows of shape {wanted}."
            )
        return crafted.to(cohort.updates.dtype)


def _pixels(data: FederatedData) -> tuple[torch.Tensor, torch.Tensor] | None:
    """The clients' common scale of pixels, if they have one."""
    scales = [getattr(client.train, "pixels", None) for client in data.clients]
    known = [scale for scale in scales if scale is not None]
    if not known or len(known) < len(scales):
        return None
    first: tuple[torch.Tensor, torch.Tensor] = known[0]
    same = all(torch.equal(scale[end], first[end]) for scale in known for end in (0, 1))
    return first if same else None


def refuse_in_messages(attack: Attack | None) -> None:
    """Refuse an attack that acts inside clients where clients are reached by Flower messages.

    Raises:
        ConfigError: it corrupts data or training, or its success is measured on clients.
    """
    if attack is not None and (overrides(attack, "corrupt") or overrides(attack, "poison")):
        raise ConfigError(
            f"attack.kind: {type(attack).__name__} acts inside the malicious clients, which needs "
            'engine.tier = "T1" or "T2"; Flower messages carry none of it.'
        )


def query(strategy: Strategy, state: Tensors, cohort: Cohort, server: Callable[[], Server]) -> Rule:
    """The server's rule as a function of rows alone; asking it leaves no trace.

    Args:
        strategy: the rule.
        state: its state before the round.
        cohort: whose rows are replaced.
        server: makes what the rule may use, afresh for every question.
    """

    def ask(updates: torch.Tensor) -> Vector:
        return strategy.step(state, replace(cohort, updates=updates), server())[1].update

    return ask
