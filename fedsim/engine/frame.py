"""What every engine does alike: refuse misuse, keep the order of items, account, end with its scope."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from fedsim.engine.protocols import Incident, Task
from fedsim.errors import WorkerError


class FramedEngine(ABC):
    """Implements `fedsim.engine.protocols.Engine` around `_compute`; also a context manager."""

    def __init__(self) -> None:
        self._packing = 0.0  # seconds since they were last taken
        self._incidents: list[Incident] = []
        self._round = 0  # of the call that is running, or was last

    @property
    @abstractmethod
    def workers(self) -> int:
        """How many."""

    @property
    @abstractmethod
    def device(self) -> str:
        """`cpu`, `cuda` or `cuda:N`: where the workers compute."""

    @property
    @abstractmethod
    def closed(self) -> bool:
        """Whether `close` was called."""

    @abstractmethod
    def close(self) -> None:
        """End all workers; safe to call twice."""

    @abstractmethod
    def _compute(self, broadcast: Any, tasks: Sequence[Task], round: int) -> Mapping[int, Any]:
        """Every item's result or `Failure`, in any order."""

    def run(self, broadcast: Any, tasks: Sequence[Task], round: int) -> Mapping[int, Any]:
        """Every item's result or `Failure`, in the order of the items given.

        Raises:
            WorkerError: workers cannot be started, or keep dying before they take a task.
        """
        if self.closed:
            raise WorkerError("The engine was closed; start another.")
        items, self._round = items_of(tasks), round
        results = self._compute(broadcast, tasks, round)
        return {item: results[item] for item in items}

    def take_packing(self) -> float:
        """Seconds since the last call that the driver spent packing tasks and unpacking results."""
        taken, self._packing = self._packing, 0.0
        return taken

    def take_incidents(self) -> list[Incident]:
        """What was lost since the last call, and what was done about it."""
        taken, self._incidents = self._incidents, []
        return taken

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def items_of(tasks: Sequence[Task]) -> list[int]:
    """All items in order.

    Raises:
        ValueError: one occurs twice, or a task's payloads do not match its items.
    """
    for task in tasks:
        if not task.items or len(task.items) != len(task.payloads):
            raise ValueError(f"A task has {len(task.items)} items and {len(task.payloads)} payloads.")
    items = [item for task in tasks for item in task.items]
    if len(set(items)) != len(items):
        raise ValueError("An item occurs twice in one call.")
    return items
