"""DBA: every malicious client stamps a piece of the trigger; the model learns the whole.

Xie, Huang, Chen and Li, "DBA: Distributed Backdoor Attacks against Federated Learning", ICLR 2020, section 3.

The masked pixels of the patch are divided over the malicious clients in reading order
(`Trigger.part`); success is measured with all of them. With one member it is BadNets.

The paper's trigger on CIFAR-10 is four bars of 1 x 6 pixels, 3 apart, in the upper left corner: a patch of
height 5, width 15 and gap (3, 3), which four members divide into exactly these bars. Its malicious clients
poison 5 of 64 examples (CIFAR-10) at a rate of 0.05 for 6 epochs, and do not scale their updates when they
attack in many rounds.

Departure: here the pieces touch by default (gap 0), so that the whole is BadNets' patch.
"""

from dataclasses import dataclass

import torch

from attacks.badnets import BadNets
from attacks.triggers import Trigger
from fedsim.contracts import Tensors
from fedsim.errors import ConfigError
from fedsim.threat import Threat


@dataclass(frozen=True, kw_only=True)
class Dba(BadNets):
    """A backdoor whose trigger is divided over the members.

    See `BadNets` for the attributes; `patch` is the whole trigger.
    """

    def init(self, threat: Threat, rng: torch.Generator) -> Tensors:
        """The whole trigger, and among how many it is divided.

        Raises:
            ConfigError: see `BadNets.init`; or there are more members than pixels.
        """
        state = super().init(threat, rng)
        pixels = Trigger.from_state(state).places
        if pixels < len(threat.members):
            raise ConfigError(
                f"attack.patch: a trigger of {pixels} pixels cannot be divided over "
                f"{len(threat.members)} malicious clients; enlarge it or lower attack.malicious."
            )
        return state

    def own_trigger(self, state: Tensors, member: int) -> Trigger:
        """The member's piece."""
        return Trigger.from_state(state).part(member, int(state["members"]))
