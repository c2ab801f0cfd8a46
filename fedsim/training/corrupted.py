"""A malicious client in a worker: its honest method and data, changed by the attack for one round."""

from dataclasses import dataclass
from typing import Protocol

import torch

from fedsim.contracts import ClientData, ClientInfo, ClientMethod, LocalProgram, Tensors
from fedsim.errors import RoundError, attributed
from fedsim.federation import Corruption


class Corrupts(Protocol):
    """The hook of `fedsim.threat.Attack` that acts in workers."""

    def corrupt(
        self, state: Tensors, member: int, program: LocalProgram, data: ClientData
    ) -> tuple[LocalProgram, ClientData]:
        """Another program, other data."""
        ...


@dataclass(frozen=True)
class CorruptedMethod:
    """A client method whose program of this round is the attack's.

    Attributes:
        honest: supplies private tensors, and finishes.
        changed: the program.
    """

    honest: ClientMethod
    changed: LocalProgram

    def init(self, client: ClientInfo, rng: torch.Generator) -> Tensors:
        """As an honest client."""
        return self.honest.init(client, rng)

    def program(self, client: ClientInfo, round: int) -> LocalProgram:
        """The attack's."""
        return self.changed

    def finish(
        self, before: Tensors, after: Tensors, private: Tensors, downlink: Tensors, steps: int
    ) -> tuple[Tensors, Tensors]:
        """As an honest client."""
        return self.honest.finish(before, after, private, downlink, steps)


def corrupted(
    attack: Corrupts, corruption: Corruption, method: ClientMethod, client: ClientInfo, round: int
) -> tuple[ClientMethod, ClientInfo]:
    """The method and data of a malicious client in a round.

    Args:
        attack: changes them.
        corruption: members, `client` among them, and the attack's state on the client's device.
        method: what an honest client does.
        client: with its honest data.
        round: counts from 1.

    Raises:
        RoundError: the attack's code raised, or left the client nothing to train on.
    """
    member = corruption.members.index(client.partition)
    with attributed(f"Round {round}: {type(attack).__name__}.corrupt", RoundError):
        program, data = attack.corrupt(corruption.state, member, method.program(client, round), client.data)
    return CorruptedMethod(method, program), ClientInfo(client.partition, data)
