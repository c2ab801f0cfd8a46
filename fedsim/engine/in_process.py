"""One worker that is the driver itself: no process, no pickling, and no protection.

A client that ends its process ends the run, and a deadline cannot be enforced (`start` therefore takes a
process of its own where one is set); two workers or more, or the Ray backend, are protected against both.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from fedsim.contracts import Failure
from fedsim.engine.events import Trouble, run_checked
from fedsim.engine.frame import FramedEngine
from fedsim.engine.processes import working_driver
from fedsim.engine.protocols import Handler, Incident, Remedy, Setup, Task, WorkerPlace
from fedsim.errors import WorkerError


class DriverEngine(FramedEngine):
    """The driver as its own worker."""

    def __init__(self, setup: Setup, data: Any, device: torch.device) -> None:
        """Build the handler.

        Args:
            setup: called with the data and worker number 0.
            data: handed on as it is.
            device: of the worker.

        Raises:
            WorkerError: the set-up raised.
        """
        super().__init__()
        self._setup, self._data, self._place = setup, data, WorkerPlace(0, device)
        self._handler: Handler | None = self._build()

    @property
    def workers(self) -> int:
        """One."""
        return 1

    @property
    def device(self) -> str:
        """Of the driver's handler."""
        return str(self._place.device)

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._handler is None

    def close(self) -> None:
        """Let go of handler and data; safe to call twice."""
        self._handler = self._data = None

    def _compute(self, broadcast: Any, tasks: Sequence[Task], round: int) -> Mapping[int, Any]:
        results: dict[int, Any] = {}
        with working_driver(self._place.device):
            for task in tasks:
                results.update(zip(task.items, self._run_task(broadcast, task), strict=True))
        return results

    def _run_task(self, broadcast: Any, task: Task) -> list[Any]:
        """As in other engines: whole, whole again, item by item; here with a fresh handler."""
        alone = len(task.items) == 1
        remedies: tuple[Remedy, ...] = ("retried", "given up" if alone else "split")
        results = self._tried(broadcast, task, remedies)
        if isinstance(results, list):
            return results
        if alone:
            return [self._failure(task, results)]
        found: list[Any] = []
        for item, payload in zip(task.items, task.payloads, strict=True):
            one = Task((item,), (payload,))
            results = self._tried(broadcast, one, ("given up",))
            found += results if isinstance(results, list) else [self._failure(one, results)]
        return found

    def _tried(self, broadcast: Any, task: Task, remedies: Sequence[Remedy]) -> list[Any] | Trouble:
        """The results of the first of as many trials as there are remedies, else the last trouble."""
        for remedy in remedies:
            try:
                return run_checked(self._current(), broadcast, task)
            except (Exception, SystemExit) as error:
                trouble = Trouble.of(error)
                self._incidents.append(
                    Incident(self._round, 0, "exception", task.items, remedy, trouble.message)
                )
                self._handler = self._build()
        return trouble

    def _failure(self, task: Task, trouble: Trouble) -> Failure:
        return Failure(self._round, task.items[0], 0, "exception", trouble.message, trouble.traceback)

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
