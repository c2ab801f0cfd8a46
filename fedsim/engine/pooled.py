"""The engine over worker processes of any kind: one call per worker and round, losses made good."""

import time
import weakref
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from fedsim.contracts import Failure
from fedsim.engine.crew import Crew, Seat, Seats
from fedsim.engine.events import Died, Done, Event, Raised, Trouble
from fedsim.engine.frame import FramedEngine
from fedsim.engine.protocols import Incident, Task
from fedsim.engine.schedule import Queue, Trial, after_loss, divide, remedy_of
from fedsim.engine.share import Parcel, unpack

Kind = Literal["exception", "died", "deadline"]


class PooledEngine(FramedEngine):
    """A crew of workers, each of which holds its data from one round to the next."""

    def __init__(self, crew: Crew, workers: int, deadline: float | None) -> None:
        """Start all workers and wait until they are ready.

        Args:
            crew: starts them; closed with the engine.
            workers: how many.
            deadline: seconds that a worker may take for one call, or None.

        Raises:
            WorkerError: a worker cannot be started, or its set-up raised.
        """
        super().__init__()
        self._crew, self._deadline = crew, deadline
        self._seats = Seats(crew, workers, self._note_loss)
        self._end = weakref.finalize(self, crew.close)  # also when the interpreter ends
        try:
            self._seats.fill()
            while self._seats.having("starting"):
                self._seats.hear(None)
        except BaseException:
            self.close()
            raise

    @property
    def workers(self) -> int:
        """How many."""
        return len(self._seats)

    @property
    def device(self) -> str:
        """As the crew places its workers."""
        return self._crew.device

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return not self._end.alive

    def close(self) -> None:
        """End all workers; safe to call twice."""
        self._end()

    def _compute(self, broadcast: Any, tasks: Sequence[Task], round: int) -> Mapping[int, Any]:
        try:
            self._seats.fill()
            self._seats.hear(0.0)  # replaces workers that were lost between two calls
            begun = time.perf_counter()
            with self._crew.publish(broadcast) as published:
                call = _Call(self._seats, published, tasks, round, self._deadline)
                call.packing = time.perf_counter() - begun
                try:
                    return call.complete()
                finally:
                    self._packing += call.packing
                    self._incidents += call.incidents
        except BaseException:
            self._abandon()
            raise

    def _note_loss(self, worker: int, trouble: Trouble) -> None:
        """A worker died that had nothing to do."""
        self._incidents.append(Incident(self._round, worker, "died", (), "replaced", trouble.message))

    def _abandon(self) -> None:
        """Drop workers whose call will not be heard to its end; the next call replaces them."""
        for seat in (*self._seats.having("busy"), *self._seats.having("starting")):
            self._seats.drop(seat)


class _Call:
    """One call of the engine, from the first division of tasks to the last result."""

    def __init__(
        self, seats: Seats, broadcast: Any, tasks: Sequence[Task], round: int, deadline: float | None
    ) -> None:
        self._seats, self._broadcast, self._round, self._deadline = seats, broadcast, round, deadline
        self._queue = Queue(divide(tasks, len(seats)))
        self._results: dict[int, Any] = {}
        self.packing = 0.0  # seconds
        self.incidents: list[Incident] = []

    def complete(self) -> dict[int, Any]:
        """Results by item, in the order of arrival."""
        self._hand_out()
        while self._queue or self._seats.having("busy"):
            for seat, event in self._seats.hear(self._time_left()):
                self._take(seat, event)
            self._end_overdue()
            self._hand_out()
        return self._results

    def _hand_out(self) -> None:
        for seat in sorted(self._seats.having("idle"), key=lambda seat: not seat.spotless):
            batch = self._queue.take(seat.number, seat.spotless)
            if batch is not None:
                begun = time.perf_counter()
                seat.give(batch, self._broadcast)
                self.packing += time.perf_counter() - begun
            elif self._queue.fresh_wanted > len(self._seats.having("starting")):
                self._seats.drop(seat)
                self._seats.fill()

    def _take(self, seat: Seat, event: Event) -> None:
        if isinstance(event, Done):
            job = seat.jobs.pop(0)
            for item, packed in zip(job.task.items, event.results, strict=True):
                self._results[item] = self._opened(packed, item, seat.number)
            seat.finished += 1
            if job.trial is Trial.ALONE:  # each lone item has the whole deadline to itself
                seat.since = time.monotonic()
            if event.last:
                seat.rest()
        elif isinstance(event, Raised):
            self._lose(seat, "exception", event.trouble)
        elif isinstance(event, Died):
            self._lose(seat, "died", event.trouble)

    def _opened(self, packed: Parcel | Trouble, item: int, worker: int) -> Any:
        if isinstance(packed, Parcel):
            begun = time.perf_counter()
            try:
                return unpack(packed)
            except Exception as error:
                packed = Trouble.of(error, "The driver cannot read the result: ")
            finally:
                self.packing += time.perf_counter() - begun
        return Failure(self._round, item, worker, "exception", packed.message, packed.traceback)

    def _time_left(self) -> float | None:
        if self._deadline is None:
            return None
        ends = [seat.since + self._deadline for seat in self._seats.having("busy")]
        return max(0.0, min(ends) - time.monotonic()) if ends else None

    def _end_overdue(self) -> None:
        if self._deadline is None:
            return
        now = time.monotonic()
        for seat in self._seats.having("busy"):
            if now - seat.since >= self._deadline:
                self._lose(seat, "deadline", Trouble(f"Not complete after {self._deadline:g} s."))

    def _lose(self, seat: Seat, kind: Kind, trouble: Trouble) -> None:
        jobs, spotless = seat.jobs, seat.spotless and seat.finished == 0
        if jobs:
            batches, culprit = after_loss(jobs, spotless, certain=kind == "deadline")
            self._queue.open.extend(batches)
            remedy = remedy_of(jobs[0], culprit)
            lost = jobs[0].task.items
            self.incidents.append(Incident(self._round, seat.number, kind, lost, remedy, trouble.message))
            if culprit is not None:
                (item,) = culprit.task.items
                failure = Failure(self._round, item, seat.number, kind, trouble.message, trouble.traceback)
                self._results[item] = failure
        self._seats.drop(seat)
        self._seats.fill()
