"""Who plays tasks: this process, or several of its children, each with one task at a time."""

import os
import signal
import threading
from collections import deque
from contextlib import suppress
from multiprocessing import get_context, parent_process
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Protocol

from fedsim.engine.processes import ENVIRONMENT
from fedsim.plugins import search_in
from fedsim.sweep.plan import Task
from fedsim.sweep.play import Ended, play

_ORDERLY = 20.0  # seconds that children have to write down that they were interrupted
_KILLED = 10.0  # seconds until a killed process must be gone


class Crew(Protocol):
    """Takes as many tasks as it has places, and tells how they end."""

    places: int

    def submit(self, task: Task) -> None:
        """Begin a task; one place must be free."""
        ...

    def ended(self) -> tuple[Task, Ended]:
        """Wait for the next task that ends."""
        ...

    def close(self) -> None:
        """End what is still running; it can be continued later."""
        ...


class Alone:
    """This process itself."""

    places = 1

    def __init__(self) -> None:
        self._tasks: deque[Task] = deque()

    def submit(self, task: Task) -> None:
        """Note it."""
        self._tasks.append(task)

    def ended(self) -> tuple[Task, Ended]:
        """Play it."""
        task = self._tasks.popleft()
        return task, play(task)

    def close(self) -> None:
        """Nothing is running."""


class Children:
    """Processes of their own; one that dies loses its task and is replaced."""

    def __init__(self, places: int, folders: tuple[Path, ...]) -> None:
        """Start none yet.

        Args:
            places: how many may run at once.
            folders: where dotted plugin paths are looked up.
        """
        self.places, self._folders = places, folders
        self._idle: list[_Child] = []
        self._busy: dict[Connection, tuple[_Child, Task]] = {}

    def submit(self, task: Task) -> None:
        """Give it to an idle child, or to a new one."""
        child = self._idle.pop() if self._idle else _Child(self._folders)
        self._busy[child.pipe] = (child, task)
        with suppress(OSError):  # that it is gone shows when we listen
            child.pipe.send(task)

    def ended(self) -> tuple[Task, Ended]:
        """The next result, or the news that a child died."""
        pipe: Any = wait(list(self._busy))[0]
        child, task = self._busy.pop(pipe)
        try:
            ended: Ended = pipe.recv()
        except (EOFError, OSError):
            return task, Ended("failed", child.cause_of_death(), 0.0)
        self._idle.append(child)
        return task, ended

    def close(self) -> None:
        """Interrupt the busy, then end all."""
        children = [*self._idle, *(child for child, _ in self._busy.values())]
        for child in children:
            child.interrupt()
        for child in children:
            child.end()


class _Child:
    """One process and our end of its pipe."""

    def __init__(self, folders: tuple[Path, ...]) -> None:
        # A server imports everything once, on one thread, and forks each child in milliseconds.
        context = get_context("forkserver")
        context.set_forkserver_preload(["fedsim.sweep.crew"])
        self.pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, folders), name="fedsim-sweep")
        before = {name: os.environ.get(name) for name in ENVIRONMENT}
        os.environ.update(ENVIRONMENT)
        try:
            self._process.start()
        finally:
            for name, value in before.items():
                os.environ.pop(name) if value is None else os.environ.update({name: value})
        theirs.close()

    def interrupt(self) -> None:
        if self._process.is_alive():
            self._process.terminate()

    def end(self) -> None:
        self.pipe.close()
        self._process.join(_ORDERLY)
        if self._process.is_alive():
            self._process.kill()
            self._process.join(_KILLED)
        self._process.close()

    def cause_of_death(self) -> str:
        self._process.join(_KILLED)
        code = self._process.exitcode
        self.pipe.close()
        if code is not None and code < 0:
            with suppress(ValueError):
                return f"The process that played it was ended by {signal.Signals(-code).name}."
        return f"The process that played it ended with exit code {code}."


def _serve(pipe: Connection, folders: tuple[Path, ...]) -> None:
    """A child's life: tasks in, endings out, until the pipe closes or a signal comes."""
    os.setsid()
    threading.Thread(target=_end_with_sweep, daemon=True, name="fedsim-sweep-parent").start()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
    signal.signal(signal.SIGTERM, _interrupt)
    search_in(*folders)
    with suppress(EOFError, OSError, KeyboardInterrupt):
        while True:
            task: Any = pipe.recv()
            pipe.send(play(task))


def _end_with_sweep() -> None:
    """However the sweep ends: this process and what it started, which would keep the folder locked."""
    sweep = parent_process()  # the server is none, and lives as long as its children do
    if sweep is not None:
        wait([sweep.sentinel])
        os.killpg(0, signal.SIGKILL)


def _interrupt(number: int, frame: Any) -> None:
    raise KeyboardInterrupt
