"""Workers as the driver sees them, and the seats of the pool that they fill."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from fedsim.engine.events import Died, Event, Ready, Refused, Trouble, one_line
from fedsim.engine.protocols import Setup, Task
from fedsim.engine.schedule import Batch, Job
from fedsim.engine.share import Parcel, pack
from fedsim.errors import WorkerError

START_LIMIT = 300.0  # seconds until a worker has imported what it needs and holds its data
START_TRIES = 2


class Worker(Protocol):
    """One worker process."""

    def submit(self, broadcast: Any, tasks: Sequence[Task]) -> None:
        """Hand over one call; that the worker is gone shows up as an event, not here."""
        ...

    def kill(self) -> None:
        """End it at once, with everything that it started."""
        ...


class Crew(Protocol):
    """Starts and hears workers of one kind."""

    @property
    def device(self) -> str:
        """`cpu`, `cuda` or `cuda:N`: where its workers compute."""
        ...

    def hire(self, number: int) -> Any:
        """Begin to start a `Worker`, which then tells `Ready` or `Refused`."""
        ...

    def publish(self, broadcast: Any) -> AbstractContextManager[Any]:
        """Place a value once per machine; the context's value goes to `Worker.submit`."""
        ...

    def hear(self, workers: Sequence[Any], timeout: float | None) -> list[tuple[Any, Event]]:
        """What these workers tell; waits up to `timeout` seconds for the first (None: any time)."""
        ...

    def close(self) -> None:
        """End all workers and release what was placed; safe to call twice."""
        ...


def pack_holdings(setup: Setup, data: Any) -> Parcel:
    """What every worker keeps, packed.

    Raises:
        WorkerError: it cannot be pickled.
    """
    try:
        return pack((setup, data))
    except Exception as error:
        raise WorkerError(
            f"Set-up or data cannot be sent to workers: {one_line(error)}: make them picklable, or set "
            "engine.backend = 'in-process' and engine.workers = 1."
        ) from error


@dataclass
class Seat:
    """A numbered place in the pool, the worker in it, and the worker's part of the current call.

    Attributes:
        number: from 0; a worker that replaces a lost one takes over its number.
        worker: None between a loss and the next hiring.
        spotless: the worker had been given nothing before the current call.
        jobs: unfinished, in the order in which the worker does them.
        finished: how many jobs of the current call are complete.
        since: when the worker was hired, or given its call, in seconds of the monotonic clock.
        failed_starts: workers in a row that ended before they were ready.
    """

    number: int
    worker: Any = None
    state: Literal["empty", "starting", "idle", "busy"] = "empty"
    spotless: bool = True
    jobs: list[Job] = field(default_factory=list)
    finished: int = 0
    since: float = 0.0
    failed_starts: int = 0

    def give(self, batch: Batch, broadcast: Any) -> None:
        """Hand the batch to the worker in one call."""
        self.jobs, self.finished, self.state = list(batch.jobs), 0, "busy"
        self.since = time.monotonic()
        self.worker.submit(broadcast, [job.task for job in batch.jobs])

    def rest(self) -> None:
        """The call is complete."""
        self.jobs, self.state, self.spotless = [], "idle", False


class Seats:
    """All seats of a pool; sees to it that they are filled."""

    def __init__(self, crew: Crew, count: int, tell: Callable[[int, Trouble], None]) -> None:
        """Empty seats.

        Args:
            crew: fills them.
            count: how many.
            tell: called with the number of a worker that died without work, and how.
        """
        self._crew, self._tell = crew, tell
        self._seats = [Seat(number) for number in range(count)]

    def __iter__(self) -> Iterator[Seat]:
        return iter(self._seats)

    def __len__(self) -> int:
        return len(self._seats)

    def having(self, state: str) -> list[Seat]:
        """The seats in this state, by number."""
        return [seat for seat in self._seats if seat.state == state]

    def fill(self) -> None:
        """Hire for every empty seat, without waiting for the workers to be ready."""
        for seat in self.having("empty"):
            seat.worker, seat.state, seat.spotless = self._crew.hire(seat.number), "starting", True
            seat.since = time.monotonic()

    def drop(self, seat: Seat) -> None:
        """End the seat's worker at once."""
        worker, seat.worker, seat.state, seat.jobs = seat.worker, None, "empty", []
        if worker is not None:
            worker.kill()

    def hear(self, timeout: float | None) -> list[tuple[Seat, Event]]:
        """What busy workers tell; starts, and losses of workers without work, are dealt with here.

        Raises:
            WorkerError: a worker cannot be started.
        """
        seats = {id(seat.worker): seat for seat in self._seats if seat.worker is not None}
        workers = [seat.worker for seat in seats.values()]
        told = []
        for worker, event in self._crew.hear(workers, self._patience(timeout)):
            seat = seats[id(worker)]
            if seat.state == "busy":
                told.append((seat, event))
            else:
                self._attend(seat, event)
        self._check_starts()
        self.fill()
        return told

    def _patience(self, timeout: float | None) -> float | None:
        ends = [seat.since + START_LIMIT for seat in self.having("starting")]
        if not ends:
            return timeout
        left = max(0.0, min(ends) - time.monotonic())
        return left if timeout is None else min(left, timeout)

    def _attend(self, seat: Seat, event: Event) -> None:
        if isinstance(event, Ready):
            seat.state, seat.failed_starts = "idle", 0
        elif isinstance(event, Refused):
            raise WorkerError(
                f"Worker {seat.number} could not set itself up: {event.trouble.message}\n"
                f"{event.trouble.traceback}"
            )
        elif isinstance(event, Died):
            if seat.state == "starting":
                seat.failed_starts += 1
            if seat.failed_starts >= START_TRIES:
                raise WorkerError(
                    f"Worker {seat.number} ended {seat.failed_starts} times before it was ready: "
                    f"{event.trouble.message}\n{event.trouble.traceback}"
                )
            self._tell(seat.number, event.trouble)
            self.drop(seat)

    def _check_starts(self) -> None:
        now = time.monotonic()
        for seat in self.having("starting"):
            if now - seat.since > START_LIMIT:
                raise WorkerError(f"Worker {seat.number} was not ready after {START_LIMIT:.0f} s.")
