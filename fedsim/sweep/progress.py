"""How far a sweep is and how long it will take, on a terminal; silence elsewhere."""

from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from fedsim.sweep.plan import Task
from fedsim.sweep.play import Ended


def remaining(seconds: float, finished: int, waiting: int, jobs: int) -> float | None:
    """Seconds to go, from the mean of what has finished; None before anything has.

    Args:
        seconds: that the finished tasks took together.
        finished: tasks that were played.
        waiting: tasks that were not, including those on their way.
        jobs: played at a time.
    """
    return None if not finished else seconds / finished * waiting / min(jobs, max(1, waiting))


class SweepProgress:
    """A bar with an estimate; use as a context manager."""

    def __init__(self, console: Console, tasks: int, jobs: int) -> None:
        self._left, self._jobs, self._played, self._seconds = tasks, jobs, 0, 0.0
        self._bar: Progress | None = None
        if console.is_terminal and tasks:
            columns: list[Any] = [BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[told]}")]
            self._bar = Progress(*columns, console=console)
            self._task = self._bar.add_task("", total=tasks, told="first runs")

    def __enter__(self) -> "SweepProgress":
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def ended(self, task: Task, ended: Ended) -> None:
        """Move the bar on; say what failed."""
        self._left -= 1
        if ended.seconds:
            self._played, self._seconds = self._played + 1, self._seconds + ended.seconds
        if self._bar is None:
            return
        if ended.status == "failed":
            self._bar.console.print(f"{task.name}: failed: {ended.reason}", highlight=False, markup=False)
        left = remaining(self._seconds, self._played, self._left, self._jobs)
        told = "" if left is None else f"about {duration(left)} to go"
        self._bar.update(self._task, advance=1, told=told)


def duration(seconds: float) -> str:
    """`45 s`, `12 min`, `2 h 05 min`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60:02d} min"
