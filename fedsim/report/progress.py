"""What a person sees while a run goes on: a live bar on a terminal, a few plain lines elsewhere."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from fedsim.report.outcome_tables import number
from fedsim.run.assembly import Parts
from fedsim.run.outcome import Outcome

LINES = 10  # plain lines per seed, at most about so many
_SHOWN = ("train_loss", "test_accuracy", "client_test_accuracy", "attack_success")


class LiveProgress:
    """A bar per seed with the latest numbers; use as a context manager."""

    def __init__(self, console: Console) -> None:
        self._progress = Progress(
            TextColumn("[bold]seed {task.fields[seed]}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[numbers]}"),
            console=console,
        )
        self._task: TaskID | None = None
        self._latest: dict[str, float] = {}

    def __enter__(self) -> "LiveProgress":
        self._progress.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._progress.stop()

    def seed_started(self, parts: Parts, folder: Path, finished: int) -> None:
        """Open the seed's bar."""
        self._latest = {}
        self._task = self._progress.add_task(
            "", total=parts.experiment.rounds, completed=finished, seed=parts.seed, numbers="starting workers"
        )

    def round_finished(self, record: Mapping[str, Any]) -> None:
        """Move the bar on."""
        self._latest |= {name: value for name, value in record["metrics"].items() if value is not None}
        if self._task is not None:
            self._progress.update(self._task, completed=record["round"], numbers=_numbers(self._latest))

    def seed_finished(self, outcome: Outcome) -> None:
        """Say how it ended, where it did not end well."""
        if outcome.status != "completed":
            self._progress.console.print(f"seed {outcome.seed}: {outcome.status}", highlight=False)

    def notice(self, line: str) -> None:
        """A line above the bars."""
        self._progress.console.print(line, highlight=False, markup=False)


class PlainProgress:
    """About ten lines per seed."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._every, self._rounds = 1, 1

    def seed_started(self, parts: Parts, folder: Path, finished: int) -> None:
        """Say what begins."""
        self._rounds = parts.experiment.rounds
        self._every = max(1, self._rounds // LINES)
        again = f", resumed after round {finished}" if finished else ""
        self._say(f"seed {parts.seed}: {self._rounds} rounds, {len(parts.data.clients)} clients{again}")

    def round_finished(self, record: Mapping[str, Any]) -> None:
        """Show every tenth of the rounds."""
        if record["round"] % self._every == 0 or record["round"] == self._rounds:
            self._say(f"round {record['round']}/{self._rounds}  {_numbers(record['metrics'])}")

    def seed_finished(self, outcome: Outcome) -> None:
        """Say how it ended."""
        self._say(f"seed {outcome.seed}: {outcome.status}")

    def notice(self, line: str) -> None:
        """A line of its own."""
        self._say(line)

    def _say(self, line: str) -> None:
        self._console.print(line, soft_wrap=True, highlight=False, markup=False)


def _numbers(metrics: Mapping[str, float | None]) -> str:
    return "  ".join(f"{name} {number(metrics[name])}" for name in _SHOWN if metrics.get(name) is not None)
