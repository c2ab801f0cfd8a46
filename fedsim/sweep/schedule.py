"""Plays all tasks, each after the clean run that it needs."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from fedsim.sweep.crew import Crew
from fedsim.sweep.plan import Task
from fedsim.sweep.play import Ended


def play_all(tasks: Sequence[Task], crew: Crew) -> Iterator[tuple[Task, Ended]]:
    """Every task with how it ended, in the order in which they end.

    A task whose clean run failed is not played: it ends with that reason.
    """
    waiting, busy = list(tasks), 0
    unfinished = {task.folder for task in tasks if task.is_clean}
    lost: dict[Path, str] = {}
    while waiting or busy:
        for task in [task for task in waiting if task.clean in lost]:
            waiting.remove(task)
            yield task, Ended("failed", lost[task.clean or task.folder], 0.0)
        while busy < crew.places and (ready := _next(waiting, unfinished)) is not None:
            waiting.remove(ready)
            crew.submit(ready)
            busy += 1
        if not busy:
            continue
        task, ended = crew.ended()
        busy -= 1
        if task.is_clean:
            unfinished.discard(task.folder)
            if ended.status == "failed":
                lost[task.folder] = ended.reason or "no reason"
        yield task, ended


def _next(waiting: Sequence[Task], unfinished: set[Path]) -> Task | None:
    """The first task that waits for nothing."""
    return next((task for task in waiting if task.clean not in unfinished), None)
