"""One worker that is the driver itself: no process, no pickling, and no protection.

A client that ends its process ends the run, and a deadline cannot be enforced (`start` therefore takes a
process of its own where one is set); two workers or more, or the Ray backend, are protected against both.
"""

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self

import torch

from fedsim.contracts import Failure
from fedsim.engine.contract import Handler, Setup, Task, WorkerPlace
from fedsim.engine.events import Trouble, run_checked
from fedsim.engine.pool import items_of
from fedsim.engine.processes import working_driver
from fedsim.errors import WorkerError


class DriverEngine:
    """Implements `fedsim.engine.contract.Engine`; also a context manager."""

    def __init__(self, setup: Setup, data: Any, device: torch.device) -> None:
        """Build the handler.

        Args:
            setup: called with the data and worker number 0.
            data: handed on as it is.
            device: of the worker.

        Raises:
            WorkerError: the set-up raised.
        """
        self._setup, self._data, self._place = setup, data, WorkerPlace(0, device)
        self._handler: Handler | None = self._build()

    @property
    def workers(self) -> int:
        """One."""
        return 1

    def run(self, broadcast: Any, tasks: Sequence[Task], round: int) -> Mapping[int, Any]:
        """Every item's result or `Failure`, in the order of the items given.

        Raises:
            WorkerError: the set-up raised when it was called again after a task had raised.
        """
        if self._handler is None:
            raise WorkerError("The engine was closed; start another.")
        items_of(tasks)
        results: dict[int, Any] = {}
        with working_driver(self._place.device):
            for task in tasks:
                results.update(zip(task.items, self._run_task(broadcast, task, round), strict=True))
        return results

    def take_packing(self) -> float:
        """Nothing is packed."""
        return 0.0

    def close(self) -> None:
        """Let go of handler and data; safe to call twice."""
        self._handler = self._data = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _run_task(self, broadcast: Any, task: Task, round: int) -> list[Any]:
        """As in other engines: whole, whole again, item by item; here with a fresh handler."""
        for _ in range(2):
            try:
                return run_checked(self._current(), broadcast, task)
            except (Exception, SystemExit) as error:
                trouble = Trouble.of(error)
                self._handler = self._build()
        if len(task.items) == 1:
            return [Failure(round, task.items[0], 0, "exception", trouble.message, trouble.traceback)]
        results = []
        for item, payload in zip(task.items, task.payloads, strict=True):
            results += self._run_alone(broadcast, Task((item,), (payload,)), round)
        return results

    def _run_alone(self, broadcast: Any, task: Task, round: int) -> list[Any]:
        try:
            return run_checked(self._current(), broadcast, task)
        except (Exception, SystemExit) as error:
            trouble = Trouble.of(error)
            self._handler = self._build()
        return [Failure(round, task.items[0], 0, "exception", trouble.message, trouble.traceback)]

    def _current(self) -> Handler:
        if self._handler is None:
            self._handler = self._build()
        return self._handler

    def _build(self) -> Handler:
        with working_driver(self._place.device):
            try:
                return self._setup(self._data, self._place)
            except (Exception, SystemExit) as error:
                trouble = Trouble.of(error)
                text = f"Worker 0 could not set itself up: {trouble.message}\n{trouble.traceback}"
                raise WorkerError(text) from error
