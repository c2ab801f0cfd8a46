"""Workers as processes of this machine, each on one end of a Unix socket, started by the nursery."""

import contextlib
import os
import select
import signal
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from fedsim.engine.arena import Arena, place
from fedsim.engine.channel import Channel
from fedsim.engine.crew import pack_holdings
from fedsim.engine.events import Died, Event, Raised, Trouble
from fedsim.engine.nursery_link import NurseryLink
from fedsim.engine.protocols import Setup, Task
from fedsim.engine.share import pack, unpack
from fedsim.engine.worker import Call, Hello

_SILENCE_LIMIT = 60.0  # seconds without a byte in the middle of a message
_CLOSE_LIMIT = 2.0  # seconds that workers have for an orderly end
_LAST_BREATH = 1.0  # seconds between the end of a worker's connection and that of its process
_KILL_LIMIT = 10.0  # seconds until a killed process must be gone
_MOST_LOG = 1 << 16  # bytes
_DEATH_CHECK = 0.5  # seconds; a grandchild may hold the socket open after the worker has died


class SpawnedWorker:
    """One worker process."""

    def __init__(self, nursery: NurseryLink, hello: Hello, files: Sequence[int]) -> None:
        ours, theirs = socket.socketpair()
        ours.settimeout(_SILENCE_LIMIT)
        self.channel = Channel(ours)
        self._nursery, self._ended, self._crash_log = nursery, False, _crash_log()
        try:
            with theirs:
                self._process = nursery.bear(theirs.fileno(), self._crash_log)
        except BaseException:
            self.release()
            raise
        with contextlib.suppress(OSError):  # that it is gone shows up as an event
            self.channel.send(hello, files)

    def submit(self, broadcast: Arena, tasks: Sequence[Task]) -> None:
        """Hand over one call; that the worker is gone shows up as an event."""
        with contextlib.suppress(OSError):
            self.channel.send(Call(broadcast.placed, tuple(tasks)), broadcast.files)

    def hear(self) -> Event:
        """The next event; waits for it."""
        try:
            parcel = self.channel.receive()
        except (EOFError, OSError) as error:
            self._end(grace=_LAST_BREATH)
            if isinstance(error, TimeoutError):
                return Died(Trouble(f"The worker fell silent for {_SILENCE_LIMIT:.0f} s within a message."))
            return Died(self._cause())
        try:
            event: Event = unpack(parcel)
        except Exception as error:
            return Raised(Trouble.of(error, "The driver cannot read the results: "))
        return event

    def has_ended(self) -> bool:
        """Whether the process is gone."""
        return self._nursery.status(self._process) is not None

    def obituary(self) -> Event:
        """How a process ended that can tell nothing any more."""
        self._end(grace=0.0)
        return Died(self._cause())

    def kill(self) -> None:
        """End it at once, with everything that it started, and release what the driver held of it."""
        self._end(grace=0.0)
        self.release()

    def release(self) -> None:
        """Close the driver's files of this worker; safe to call twice."""
        self.channel.close()
        if self._crash_log >= 0:
            os.close(self._crash_log)
            self._crash_log = -1

    def wait(self, timeout: float) -> None:
        """Wait until the process ends by itself."""
        self._nursery.status(self._process, max(0.0, timeout))

    def _end(self, grace: float) -> None:
        """End the process group; a process that is dying keeps its own cause of death for `grace` s."""
        if self._ended:
            return
        self._ended = True
        if grace:
            self.wait(grace)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process, signal.SIGKILL)
        self.wait(_KILL_LIMIT)

    def _cause(self) -> Trouble:
        log = os.pread(self._crash_log, _MOST_LOG, 0).decode(errors="replace")
        return Trouble(death_message(self._nursery.status(self._process)), log)


def death_message(code: int | None) -> str:
    """How a process ended, from its return code (below 0: the signal's number; None: not known)."""
    if code is None:
        return "The worker closed its connection; how its process ended is not known."
    if code >= 0:
        return f"The worker's process ended with exit code {code}."
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    hint = " (the system may have run out of memory)" if name == "SIGKILL" else ""
    return f"The worker's process was ended by {name}{hint}."


class SpawnedCrew:
    """Implements `fedsim.engine.crew.Crew`."""

    def __init__(self, setup: Setup, data: Any, device: str) -> None:
        """Place the data once for all workers.

        Args:
            setup: builds each worker's handler.
            data: what the workers hold.
            device: `cpu`, `cuda` or `cuda:N`.
        """
        self.device = device
        parcel = pack_holdings(setup, data)
        self._holdings, self._modules = place(parcel), parcel.modules
        self._nursery: NurseryLink | None = None
        self._workers: dict[int, SpawnedWorker] = {}

    def hire(self, number: int) -> SpawnedWorker:
        """Start a worker and send its set-up."""
        if self._nursery is None or not self._nursery.lives:
            self._dismiss_nursery()
            self._nursery = NurseryLink(self._modules)
        hello = Hello(number, self.device, self._holdings.placed)
        worker = self._workers[number] = SpawnedWorker(self._nursery, hello, self._holdings.files)
        return worker

    @contextmanager
    def publish(self, broadcast: Any) -> Iterator[Arena]:
        """The broadcast in an anonymous file, or packed along where it is small."""
        arena = place(pack(broadcast))
        try:
            yield arena
        finally:
            arena.close()

    def hear(
        self, workers: Sequence[SpawnedWorker], timeout: float | None
    ) -> list[tuple[SpawnedWorker, Event]]:
        """One event of each worker that has something to tell."""
        end = None if timeout is None else time.monotonic() + timeout
        by_file = {worker.channel.fileno(): worker for worker in workers}
        poll = select.poll()
        for file in by_file:
            poll.register(file, select.POLLIN)
        while True:
            left = _DEATH_CHECK if end is None else min(_DEATH_CHECK, max(0.0, end - time.monotonic()))
            ready = [by_file[file] for file, _ in poll.poll(left * 1000)]
            if ready:
                return [(worker, worker.hear()) for worker in ready]
            ended = [worker for worker in workers if worker.has_ended()]
            if ended and not poll.poll(0):
                return [(worker, worker.obituary()) for worker in ended]
            if end is not None and time.monotonic() >= end:
                return []

    def close(self) -> None:
        """End all workers and release the data; safe to call twice."""
        for worker in self._workers.values():
            worker.channel.close()
        end = time.monotonic() + _CLOSE_LIMIT
        for worker in self._workers.values():
            worker.wait(end - time.monotonic())
            worker.kill()
        self._workers.clear()
        self._dismiss_nursery()
        self._holdings.close()

    def _dismiss_nursery(self) -> None:
        if self._nursery is not None:
            self._nursery.close()
            self._nursery = None


def _crash_log() -> int:
    """A file for the stack that `faulthandler` writes on a fatal signal."""
    return os.memfd_create("fedsim-crash") if hasattr(os, "memfd_create") else os.open("/dev/null", os.O_RDWR)
