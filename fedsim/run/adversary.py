"""The attack's place in a round: who is malicious, when, and what the malicious clients send.

An attack on updates (`craft`) rewrites the rows of the malicious clients after honest training, seeing no
more than the view that its declared knowledge grants. (An attack on data or training, `corrupt`, acts
where the program is made, in the client's worker.)
"""

from dataclasses import dataclass, replace

import torch

from fedsim import rng
from fedsim.contracts import Attack, Cohort, Rule, Server, Strategy, Tensors, Vector
from fedsim.errors import ConfigError, RoundError
from fedsim.run.assembly import Parts
from fedsim.threat import Knowledge, Passive, View


@dataclass(frozen=True)
class Adversary:
    """An attack together with its members and its window of rounds."""

    attack: Attack
    members: tuple[int, ...]
    forced: bool
    first: int
    last: int
    seed: int

    @classmethod
    def of(cls, parts: Parts) -> "Adversary | None":
        """The experiment's adversary, if it has one."""
        table, attack = parts.experiment.attack, parts.plugins.attack
        if table is None or attack is None:
            return None
        if getattr(type(attack), "corrupt", Passive.corrupt) is not Passive.corrupt:
            raise ConfigError(
                f"attack.kind: {table.kind!r} corrupts data or training, which this version cannot run yet; "
                "only attacks on updates (craft) can."
            )
        first, last = table.window or (1, parts.experiment.rounds)
        return cls(attack, parts.malicious, table.participation == "forced", first, last, parts.seed)

    def init(self) -> Tensors:
        """The attack's state before round 1."""
        return self.attack.init(self.members, rng.stream(self.seed, "attack-init"))

    def active(self, round: int) -> bool:
        """Is this round in the window?"""
        return self.first <= round <= self.last

    def forced_members(self, round: int) -> tuple[int, ...]:
        """Who must be in this round's cohort."""
        return self.members if self.forced and self.active(round) else ()

    def rewrite(self, state: Tensors, cohort: Cohort, model: Vector, rule: Rule) -> Cohort:
        """The cohort with the malicious clients' rows in place of their honest ones.

        Raises:
            RoundError: the attack made rows of another shape, or values that are not finite.
        """
        places = [place for place, partition in enumerate(cohort.partitions) if partition in self.members]
        if not self.active(cohort.round) or not places:
            return cohort
        updates = cohort.updates.clone()
        # Without collusion each malicious client acts alone, on its own update and its own chance.
        alone = self.attack.knows < Knowledge.COLLUDERS
        for group in [[place] for place in places] if alone else [places]:
            updates[group] = self._craft(state, cohort, group, model, rule)
        return replace(cohort, updates=updates)

    def _craft(
        self, state: Tensors, cohort: Cohort, group: list[int], model: Vector, rule: Rule
    ) -> torch.Tensor:
        view = View(
            knows=self.attack.knows,
            round=cohort.round,
            clients=len(cohort.partitions),
            malicious=len(group),
            model=model,
            own=cohort.updates[group],
            updates=cohort.updates,
            rule=rule,
        )
        chance = rng.stream(self.seed, "attack", cohort.round, cohort.partitions[group[0]])
        crafted = self.attack.craft(state, view, chance)
        wanted = (len(group), cohort.updates.shape[1])
        if tuple(crafted.shape) != wanted or not bool(torch.isfinite(crafted).all()):
            raise RoundError(
                f"Round {cohort.round}: the attack {type(self.attack).__name__} made rows of shape "
                f"{tuple(crafted.shape)}, wanted finite rows of shape {wanted}."
            )
        return crafted.to(cohort.updates.dtype)


def query(strategy: Strategy, state: Tensors, cohort: Cohort, model: Vector, seed: int) -> Rule:
    """The server's rule as a function of rows alone; asking it leaves no trace."""

    def ask(updates: torch.Tensor) -> Vector:
        server = Server(model=model, rng=rng.stream(seed, "strategy", cohort.round))
        return strategy.step(state, replace(cohort, updates=updates), server)[1].update

    return ask
