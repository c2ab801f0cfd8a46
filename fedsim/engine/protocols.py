"""What an engine runs: tasks of clients, in workers that outlive the round.

A worker is built once (`Setup`), holds the data, and is handed one list of tasks per round together with
one broadcast value. Results come back per item, so that a lost worker costs only the clients it held.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch


@dataclass(frozen=True)
class WorkerPlace:
    """Where a worker runs: its number (from 0), and its device."""

    number: int
    device: torch.device


@dataclass(frozen=True)
class Task:
    """A chunk of clients that is computed together and retried together.

    Attributes:
        items: the partitions (or message numbers), in order; unique over all tasks of a call.
        payloads: one value per item, such as the client's private tensors.
        cost: relative work, for balancing; never affects results.
    """

    items: tuple[int, ...]
    payloads: tuple[Any, ...]
    cost: float = 1.0


Remedy = Literal["retried", "split", "given up", "replaced"]
"""What follows a loss: the task whole in a fresh worker; its items one by one; the culprit is named and left
out; a worker that had no task is replaced."""


@dataclass(frozen=True)
class Incident:
    """Something that was lost in the workers, and what was done about it.

    Attributes:
        round: of the call; of the last one where it happened between two calls.
        worker: its number; None: not one of an engine's.
        kind: `died`: its process ended; `exception`: the task raised as a whole; `deadline`: time ran out.
        items: of the task that was lost; none where the worker had no task.
        remedy: what followed.
        message: one line.
    """

    round: int
    worker: int | None
    kind: Literal["exception", "died", "deadline"]
    items: tuple[int, ...]
    remedy: Remedy
    message: str


class Handler(Protocol):
    """Runs in a worker."""

    def run(self, broadcast: Any, task: Task) -> Sequence[Any]:
        """One result per item; a `Failure` in place of a result where a client's own code raised."""
        ...


Setup = Callable[[Any, WorkerPlace], Handler]


class Engine(Protocol):
    """A set of workers."""

    @property
    def workers(self) -> int:
        """How many."""
        ...

    @property
    def device(self) -> str:
        """`cpu`, `cuda` or `cuda:N`: where the workers compute."""
        ...

    def run(self, broadcast: Any, tasks: Sequence[Task], round: int) -> Mapping[int, Any]:
        """Every item's result, or a `Failure`; the mapping is in the order of the items given.

        A task whose worker died is retried whole once, then item by item in fresh workers, so that the
        culprit is named and the others finish.

        Raises:
            WorkerError: workers cannot be started, or keep dying before they take a task.
        """
        ...

    def take_packing(self) -> float:
        """Seconds since the last call that the driver spent packing tasks and unpacking results."""
        ...

    def take_incidents(self) -> Sequence[Incident]:
        """What was lost since the last call, and what was done about it; cured losses are told here alone."""
        ...

    def close(self) -> None:
        """End all workers; safe to call twice."""
        ...
