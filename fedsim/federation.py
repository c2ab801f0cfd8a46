"""How the round loop reaches its clients: one protocol, two ways.

`fedsim.run.engine_federation.EngineFederation` runs clients in the engine's workers;
`fedsim.flower.grid_federation.GridFederation` reaches them through a Flower grid: our own, Flower's
simulation, or SuperNodes on other machines.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from fedsim.contracts import Failure, LocalEvaluation, LocalUpdate, Tensors, Vector


@dataclass(frozen=True)
class Corruption:
    """Who is corrupted in a round, by an attack in this state; workers know the attack itself.

    Attributes:
        members: all malicious partitions, ascending.
        state: of the attack.
    """

    members: tuple[int, ...]
    state: Tensors


@dataclass(frozen=True)
class TrainOrder:
    """What every client of a round receives.

    Attributes:
        round: counts from 1.
        vector: [d], the shared model.
        integers: its integer tensors.
        downlink: named tensors of the rule.
        corruption: of malicious clients; never in a message.
    """

    round: int
    vector: Vector
    integers: Tensors
    downlink: Tensors = field(default_factory=dict)
    corruption: Corruption | None = None


@dataclass(frozen=True)
class EvaluateOrder:
    """The same, for an evaluation of each client's own model on its own splits.

    Attributes:
        splits: which ones.
        poison: the attack's state, where its success on the test splits is measured too.
    """

    round: int
    vector: Vector
    integers: Tensors
    downlink: Tensors = field(default_factory=dict)
    splits: tuple[str, ...] = ("val", "test")
    poison: Tensors | None = None


Order = TrainOrder | EvaluateOrder


class Federation(Protocol):
    """The clients of one run, by partition number."""

    def train(self, order: TrainOrder, partitions: Sequence[int]) -> list[LocalUpdate | Failure]:
        """One result per partition, in the order given; private state is not yet committed."""
        ...

    def commit(self, partitions: Sequence[int]) -> None:
        """Keep the private state that these clients returned in the last `train`; drop the others'."""
        ...

    def evaluate(self, order: EvaluateOrder, partitions: Sequence[int]) -> list[LocalEvaluation | Failure]:
        """Each client's own model on its own splits; changes nothing."""
        ...

    def close(self) -> None:
        """Release workers and connections."""
        ...
