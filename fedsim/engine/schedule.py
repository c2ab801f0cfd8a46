"""Which worker does what: the first division of a round, and what follows when a worker is lost.

Nothing here affects results; it decides only where and when tasks run.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

from fedsim.engine.protocols import Remedy, Task


class Trial(Enum):
    """How often a job has been tried."""

    FIRST = 0
    AGAIN = 1  # whole, in a fresh worker
    ALONE = 2  # one item


@dataclass(frozen=True)
class Job:
    """A task, or one item of it, and how often it was tried."""

    task: Task
    trial: Trial = Trial.FIRST


@dataclass(frozen=True)
class Batch:
    """Jobs that go to a worker in one call; `fresh`: to one that has not run anything yet."""

    jobs: tuple[Job, ...]
    fresh: bool = False


@dataclass
class Queue:
    """Batches that wait for a worker; `own` holds each worker's share of the first division."""

    own: dict[int, Batch]
    open: list[Batch] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.own or self.open)

    def take(self, number: int, spotless: bool) -> Batch | None:
        """The next batch for this worker: its own share, else one that only a fresh worker may run."""
        if number in self.own:
            return self.own.pop(number)
        for wanted in (True, False):
            for index, batch in enumerate(self.open):
                if batch.fresh is wanted and (spotless or not wanted):
                    return self.open.pop(index)
        return None

    @property
    def fresh_wanted(self) -> int:
        """How many batches wait for a fresh worker."""
        return sum(batch.fresh for batch in self.open)


def divide(tasks: Sequence[Task], workers: int) -> dict[int, Batch]:
    """Tasks to workers, costliest first, each to the least loaded worker; ties go to the lower number."""
    loads = [0.0] * workers
    shares: dict[int, list[Job]] = {}
    for index in sorted(range(len(tasks)), key=lambda i: (-tasks[i].cost, i)):
        number = min(range(workers), key=loads.__getitem__)
        loads[number] += tasks[index].cost
        shares.setdefault(number, []).append(Job(tasks[index]))
    return {number: Batch(tuple(jobs)) for number, jobs in shares.items()}


def after_loss(jobs: Sequence[Job], spotless: bool, certain: bool) -> tuple[list[Batch], Job | None]:
    """What to run after a worker was lost, and the job whose only item is the culprit, if that is known.

    The first unfinished job is the suspect: it is tried again whole, then item by item. An item is blamed
    only if it was all that a fresh worker was given, or if `certain` (its own time ran out).

    Args:
        jobs: the unfinished jobs of the worker's call, in order; at least one.
        spotless: the worker had run nothing before the first of them.
        certain: the loss cannot have been caused by an earlier item.
    """
    suspect, innocent = jobs[0], tuple(jobs[1:])
    alone = innocent and innocent[0].trial is Trial.ALONE
    rest = [Batch(innocent, fresh=bool(alone))] if innocent else []
    single = len(suspect.task.items) == 1
    if suspect.trial is Trial.FIRST:
        return [Batch((Job(suspect.task, Trial.AGAIN),), fresh=True), *rest], None
    if single and (spotless or certain):
        return rest, suspect
    if single:
        return [Batch((suspect,), fresh=True), *rest], None
    return [Batch(_one_by_one(suspect.task), fresh=True), *rest], None


def remedy_of(suspect: Job, culprit: Job | None) -> Remedy:
    """What `after_loss` decided about the first unfinished job, in a word."""
    if culprit is not None:
        return "given up"
    whole = suspect.trial is Trial.FIRST or len(suspect.task.items) == 1
    return "retried" if whole else "split"


def _one_by_one(task: Task) -> tuple[Job, ...]:
    cost = task.cost / len(task.items)
    return tuple(
        Job(Task((item,), (payload,), cost), Trial.ALONE)
        for item, payload in zip(task.items, task.payloads, strict=True)
    )
