"""How seeds end, and who is told of it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

from fedsim.contracts import Tensors
from fedsim.run.assembly import Parts

Status = Literal["completed", "failed", "expectation_failed"]


class Observer(Protocol):
    """Told of a run's progress; must not change anything."""

    def seed_started(self, parts: Parts, folder: Path, finished: int) -> None:
        """A seed begins, or goes on after `finished` rounds."""
        ...

    def round_finished(self, record: Mapping[str, Any]) -> None:
        """A line of rounds.jsonl was written."""
        ...

    def seed_finished(self, outcome: "Outcome") -> None:
        """A seed has ended, well or not."""
        ...

    def notice(self, line: str) -> None:
        """Something takes its time beside the rounds, such as the clean run before an attack."""
        ...


class Silent:
    """Says nothing."""

    def seed_started(self, parts: Parts, folder: Path, finished: int) -> None:
        """Nothing."""

    def round_finished(self, record: Mapping[str, Any]) -> None:
        """Nothing."""

    def seed_finished(self, outcome: "Outcome") -> None:
        """Nothing."""

    def notice(self, line: str) -> None:
        """Nothing."""


@dataclass(frozen=True)
class Outcome:
    """How one seed ended.

    Attributes:
        seed: of the run.
        status: see result.json.
        folder: of the run.
        result: what result.json holds.
        tensors: the final shared tensors; empty where the run failed or was finished before.
    """

    seed: int
    status: Status
    folder: Path
    result: Mapping[str, Any]
    tensors: Tensors = field(default_factory=dict)

    @property
    def exit_code(self) -> int:
        """0 completed, 1 failed, 3 expectation failed."""
        return {"completed": 0, "failed": 1, "expectation_failed": 3}[self.status]


def exit_code(outcomes: Sequence[Outcome]) -> int:
    """Of all seeds together: a failed one outweighs an unmet expectation."""
    codes = {outcome.exit_code for outcome in outcomes}
    return 1 if 1 in codes else max(codes)
