"""What came of a foreign app's run, and how it is told."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from fedsim.contracts import Failure
from fedsim.engine.protocols import Incident
from fedsim.params import digest

_MOST_FAILURES = 5  # that the summary spells out
NOTHING_SENT = "The ServerApp sent no message to any client: nothing was federated."
_MOST_ROUNDS = 3  # whose metrics the summary shows


@dataclass(frozen=True, kw_only=True)
class AppResult:
    """The outcome of a run.

    Attributes:
        app: `publisher/name version`.
        status: `completed`; `failed` where the ServerApp raised or too many messages failed; `no messages`
            where it ended well and never sent one, so that nothing was federated (exit code 0 all the same).
        error: one line, or "".
        traceback: of the ServerApp's exception, or "".
        clients: number of partitions.
        seed: of the run.
        workers: of the engine.
        messages: that the ServerApp sent to clients.
        failures: the ledger.
        incidents: what was lost in the workers, and what was done about it.
        notes: what was changed or looks wrong without being a failure.
        strategy: class of the strategy that ran last, or "" where the app has its own loop.
        arrays: that strategy's final model by name; None where there was no strategy or nothing to average.
            What an app keeps to itself cannot be seen from outside.
        metrics: of that strategy, by origin and round, JSON values only.
        seconds: from loading the app to its end.
    """

    app: str
    status: Literal["completed", "failed", "no messages"]
    error: str
    traceback: str
    clients: int
    seed: int
    workers: int
    messages: int
    failures: tuple[Failure, ...]
    incidents: tuple[Incident, ...]
    notes: tuple[str, ...]
    strategy: str
    arrays: Mapping[str, NDArray[Any]] | None
    metrics: Mapping[str, Mapping[int, Any]]
    seconds: float

    @property
    def exit_code(self) -> int:
        """For the command line."""
        return 1 if self.status == "failed" else 0

    @property
    def model_sha256(self) -> str | None:
        """Digest of the final model, as `fedsim.params.digest` makes it; None where there is none."""
        if self.arrays is None:
            return None
        try:
            return digest({name: torch.from_numpy(np.array(value)) for name, value in self.arrays.items()})
        except TypeError:  # text and other types that are no numbers
            return None


def summary_lines(result: AppResult) -> list[str]:
    """The run in a few lines of text."""
    lines = [
        f"{result.app}: {result.status} in {result.seconds:.1f} s",
        f"clients {result.clients}, seed {result.seed}, workers {result.workers}, messages {result.messages}",
    ]
    for origin, rounds in result.metrics.items():
        last = sorted(rounds)[-_MOST_ROUNDS:]
        lines += [f"{origin}, round {number}: {_spelt(rounds[number])}" for number in last]
    if result.model_sha256 is not None:
        lines.append(f"model_sha256 {result.model_sha256} ({result.strategy})")
    elif not result.strategy:
        lines.append("No strategy of Flower's ran, so there is no final model to show.")
    lines += [f"note: {note}" for note in result.notes]
    for one in result.incidents[:_MOST_FAILURES]:
        partitions = ", ".join(map(str, one.items)) or "none"
        lines.append(
            f"event: round {one.round}, worker {one.worker}, clients {partitions}: {one.kind}, {one.remedy}: "
            f"{one.message}"
        )
    if result.failures:
        lines += _failure_lines(result)
    lines += (result.traceback or _first_traceback(result)).splitlines()
    if result.error:
        lines.append(f"error: {result.error}")
    return lines


def _failure_lines(result: AppResult) -> list[str]:
    kinds = Counter(failure.kind for failure in result.failures)
    counts = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))
    lines = [f"failures: {len(result.failures)} of {result.messages} messages ({counts})"]
    shown = result.failures[:_MOST_FAILURES]
    lines += [f"  round {failure.round}, {failure.kind}: {failure.message}" for failure in shown]
    if len(result.failures) > _MOST_FAILURES:
        lines.append(f"  and {len(result.failures) - _MOST_FAILURES} more")
    return lines


def _first_traceback(result: AppResult) -> str:
    return next((failure.traceback for failure in result.failures if failure.traceback), "")


def _spelt(values: Any) -> str:
    if isinstance(values, Mapping):
        return ", ".join(f"{name} {_spelt(value)}" for name, value in values.items())
    return f"{values:.6g}" if isinstance(values, float) else str(values)
