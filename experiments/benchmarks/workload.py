"""What a workload is: an experiment, the tiers and peers that are worth timing on it, and for how long."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

LEARNING_RATE = 0.1


@dataclass(frozen=True)
class Variant:
    """One set of sizes; all its systems play the same rounds.

    Attributes:
        name: such as `W3 10 dense`; the key of its ratios.
        tables: of the experiment, without rounds and engine.
        tiers: of ours.
        peers: that can play it.
        rounds: timed in one repetition.
        repetitions: every system is timed once in each.
        places: `backend:workers` by tier, where not all of `contenders.PLACES` tell something.
        shown: what of it is varied, in a picture.
    """

    name: str
    tables: Mapping[str, Any]
    tiers: tuple[str, ...]
    peers: tuple[str, ...]
    rounds: int
    repetitions: int
    places: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    shown: Mapping[str, int] = field(default_factory=dict)

    @property
    def length(self) -> int:
        """Rounds in all; the first is not timed."""
        return 1 + self.rounds * self.repetitions


def tables(
    data: Mapping[str, Any], model: Mapping[str, Any], clients: int, cohort: int, batch: int | str
) -> dict[str, Any]:
    """An experiment's tables: one local epoch of plain SGD, mean weighted by examples, no evaluation."""
    return {
        "data": dict(data),
        "model": dict(model),
        "federation": {
            "clients": clients,
            "clients_per_round": cohort,
            "partition": {"kind": "synthetic:Blocks"},
            "split": [1.0, 0.0, 0.0],
        },
        "client": {
            "kind": "supervised",
            "epochs": 1,
            "batch_size": batch,
            "optimizer": {"kind": "sgd", "learning_rate": LEARNING_RATE},
        },
        "evaluate": {"clients": "none"},
    }
