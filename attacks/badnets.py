"""BadNets: train on images with a fixed patch that carry the label the attacker wants.

Gu et al., "BadNets: Identifying Vulnerabilities in the Machine Learning Model Supply Chain", 2017, section 4;
poisoning a share of every batch, as federated attacks do, follows Bagdasaryan et al., "How To Backdoor
Federated Learning", AISTATS 2020, section 4.1 (there 20 of 64; 8 of 32 here).

x' = x outside the patch and the patch's colour inside, in units of brightness and before any standardising;
y' = target. Departures: BadNets poisons 10 % of the data once; here the share holds in every batch. Examples
of the target class are neither stamped nor counted.
"""

from dataclasses import dataclass

import torch

from attacks.programs import change_batches, check_above_zero, check_fraction, train_longer
from attacks.triggers import Patch, Trigger, check_target, poison_batch
from fedsim.contracts import Batch, ClientData, LocalProgram, Tensors
from fedsim.errors import ConfigError
from fedsim.threat import Passive, Threat


@dataclass(frozen=True, kw_only=True)
class BadNets(Passive):
    """A backdoor by data poisoning alone.

    Attributes:
        target: the label that the trigger should bring about.
        poison_fraction: of each batch, rounded to the nearest count, halves up; see `poison_batch`.
        patch: the trigger.
        epochs: local epochs of malicious clients; unset: as honest ones.
        rate: factor on their learning rates.
    """

    target: int = 0
    poison_fraction: float = 0.25
    patch: Patch = Patch()  # noqa: RUF009 - frozen
    epochs: int | None = None
    rate: float = 1.0

    def __post_init__(self) -> None:
        check_fraction("poison_fraction", self.poison_fraction)
        check_above_zero("rate", self.rate)
        if self.epochs is not None and self.epochs < 1:
            raise ConfigError(f"epochs must be at least 1, found {self.epochs}.")
        if self.target < 0:
            raise ConfigError(f"target must be a label, at least 0, found {self.target}.")

    def init(self, threat: Threat, rng: torch.Generator) -> Tensors:
        """The trigger, on the scale of the federation's images.

        Raises:
            ConfigError: there are no images, or the patch, its colour or the target do not fit them.
        """
        trigger = self.patch.trigger(threat)
        check_target(self.target, threat.spec)
        return {**trigger.state(), "members": torch.tensor(len(threat.members))}

    def own_trigger(self, state: Tensors, member: int) -> Trigger:
        """What one malicious client stamps."""
        return Trigger.from_state(state)

    def corrupt(
        self, state: Tensors, member: int, program: LocalProgram, data: ClientData
    ) -> tuple[LocalProgram, ClientData]:
        """Train on batches of which a part is poisoned."""
        trigger = self.own_trigger(state, member)

        def poisoned(batch: Batch) -> Batch:
            return poison_batch(batch, trigger, self.target, self.poison_fraction)

        longer = train_longer(program, self.epochs, self.rate)
        return change_batches(longer, poisoned), data

    def poison(self, state: Tensors, batch: Batch) -> Batch:
        """The whole trigger on all examples of other classes."""
        return poison_batch(batch, Trigger.from_state(state), self.target)
