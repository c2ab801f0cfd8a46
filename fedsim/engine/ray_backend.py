"""Workers as persistent Ray actors, on this machine or on a cluster that is joined by its address.

Only this module imports Ray, and only when it is asked for. Setup and data are put into the object store
once and viewed there by the actors of a machine; so is the broadcast of each round.
"""

import contextlib
import gc
import math
import os
import signal
import socket
import sys
import threading
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from fedsim.engine.crew import pack_holdings
from fedsim.engine.events import Died, Done, Event, Raised, Trouble
from fedsim.engine.options import EngineOptions, resolve_device
from fedsim.engine.protocols import Setup, Task
from fedsim.engine.ray_actor import RayActor, owned, shippable
from fedsim.engine.share import Parcel, pack
from fedsim.errors import WorkerError

_ENVIRONMENT = {
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",  # under `uv run`, Ray would install everything anew for actors
    "RAY_USAGE_STATS_ENABLED": "0",
}
_GIB = 2**30
_MOST_LOG = 1 << 14  # bytes at the end of a dead worker's error log
_LISTENER_LIMIT = 10.0  # seconds
_RESOURCE_LIMIT = 15.0  # seconds; what an ended engine held comes back with a delay


class RayWorker:
    """One actor."""

    def __init__(self, ray: Any, actor: Any) -> None:
        self._ray, self._actor = ray, actor
        self._log = actor.error_log.remote()
        self._start: Any = actor.ready.remote()
        self._stream: Any = None

    @property
    def pending(self) -> Any:
        """What to wait for: the set-up, the current call, or nothing."""
        return self._start if self._start is not None else self._stream

    def submit(self, broadcast: Any, tasks: Sequence[Task]) -> None:
        """Hand over one call."""
        self._stream = self._actor.run.options(num_returns="streaming").remote(
            broadcast, shippable(pack(tuple(tasks)))
        )

    def hear(self) -> Event:
        """The next event, for which `pending` is ready."""
        try:
            if self._start is not None:
                reference, self._start = self._start, None
            else:
                reference = next(self._stream)
            event: Event = self._ray.get(reference)
        except StopIteration:
            event = Raised(Trouble("Ray ended the call early."))
        except self._ray.exceptions.RayActorError as error:
            event = Died(self._cause(error))
        except self._ray.exceptions.RayError as error:
            event = Raised(Trouble.of(error))
        if isinstance(event, Died | Raised) or (isinstance(event, Done) and event.last):
            self._stream = None
        return _own(event)

    def kill(self) -> None:
        """End the actor at once."""
        self._stream = self._start = None
        with contextlib.suppress(Exception):  # Ray may be shut down already
            self._ray.kill(self._actor, no_restart=True)

    def _cause(self, error: Exception) -> Trouble:
        log = self._tail_of_log()
        for line in log.splitlines():
            if line.startswith("*** SIG"):
                return Trouble(f"The worker's process was ended by {line.split()[1]}.", log)
        detail = str(error).partition("Worker exit detail: ")[2] or str(error)
        reason = detail.partition(" Some common causes")[0].strip().replace("\n", " ")
        message = f"The worker's process ended by SIGKILL, for lack of memory, or by its own exit ({reason})"
        return Trouble(message, f"{error}\n{log}")

    def _tail_of_log(self) -> str:
        """The end of the worker's error log, where the driver can read it."""
        try:
            with Path(self._ray.get(self._log, timeout=1.0)).open("rb") as file:
                file.seek(max(0, os.fstat(file.fileno()).st_size - _MOST_LOG))
                return file.read().decode(errors="replace")
        except Exception:  # another machine, or an actor that never ran: the ledger goes without
            return ""


class RayCrew:
    """Implements `fedsim.engine.crew.Crew`."""

    def __init__(self, setup: Setup, data: Any, options: EngineOptions) -> None:
        """Join or start Ray and put setup and data into its store.

        Raises:
            WorkerError: Ray is missing, cannot be reached, or has too few CPUs or cards.
        """
        self._ray = _import_ray()
        holdings = pack_holdings(setup, data)
        self._workers: list[RayWorker] = []
        self._ours = _connect(self._ray, options, holdings.nbytes + len(holdings.blob))
        try:
            self.device, self._share = _place(self._ray, options)
            _check_resources(self._ray, options.count, self._share)
            self._holdings = self._ray.put(shippable(holdings))
            self._actor_class = self._ray.remote(max_restarts=0, max_task_retries=0)(RayActor)
        except BaseException:
            self.close()
            raise

    def hire(self, number: int) -> RayWorker:
        """Create an actor and begin its set-up."""
        actor = self._actor_class.options(num_cpus=1, num_gpus=self._share).remote(
            number, self.device, self._holdings
        )
        worker = RayWorker(self._ray, actor)
        self._workers.append(worker)
        return worker

    @contextmanager
    def publish(self, broadcast: Any) -> Iterator[Any]:
        """A reference to the broadcast in the object store."""
        yield self._ray.put(shippable(pack(broadcast)))

    def hear(self, workers: Sequence[RayWorker], timeout: float | None) -> list[tuple[RayWorker, Event]]:
        """One event of each worker that has something to tell."""
        by_pending = {worker.pending: worker for worker in workers if worker.pending is not None}
        if not by_pending:
            return []
        waiting = list(by_pending)
        ready, rest = self._ray.wait(waiting, num_returns=1, timeout=timeout, fetch_local=False)
        if ready and rest:
            ready += self._ray.wait(rest, num_returns=len(rest), timeout=0, fetch_local=False)[0]
        return [(by_pending[pending], by_pending[pending].hear()) for pending in ready]

    def close(self) -> None:
        """End all actors, and Ray if it was started here; safe to call twice."""
        for worker in self._workers:
            worker.kill()
        self._workers.clear()
        self._holdings = None
        if self._ours:
            self._ours = False
            with _quiet():
                self._ray.shutdown()
                gc.collect()  # Ray leaves processes to the collector, which warns of them
            _print_losses(True)


def _own(event: Event) -> Event:
    """The event with results in memory of their own, so that the object store is free again."""
    if not isinstance(event, Done):
        return event
    results = (owned(result) if isinstance(result, Parcel) else result for result in event.results)
    return Done(tuple(results), event.last)


def _import_ray() -> Any:
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    try:
        with _quiet():
            import ray
    except ImportError as error:
        raise WorkerError(
            "engine.backend = 'ray' needs Ray: pip install 'flwr[simulation]', or set "
            "engine.backend = 'in-process'."
        ) from error
    return ray


def _connect(ray: Any, options: EngineOptions, nbytes: int) -> bool:
    """Join a cluster or start one on this machine; whether the latter was done."""
    if ray.is_initialized():
        if options.address is not None:
            raise WorkerError(
                f"engine.address = {options.address!r}, but this process has joined Ray already: call "
                "ray.shutdown() first, or leave engine.address out to use what it has joined."
            )
        return False
    _require_listener(options.address)
    try:
        with _quiet(), _own_ending():
            if options.address is not None:
                ray.init(address=options.address, log_to_driver=False, logging_level="ERROR")
            else:
                ray.init(
                    address="local",
                    num_cpus=options.count,  # logical: Ray would else refuse more workers than cores
                    object_store_memory=_store_size(nbytes),
                    include_dashboard=False,
                    log_to_driver=False,
                    logging_level="ERROR",
                )
    except Exception as error:
        where = f"join Ray at {options.address!r}" if options.address is not None else "start Ray"
        text = str(error).strip().splitlines() or [type(error).__name__]
        raise WorkerError(f"Cannot {where}: {text[0]}") from error
    _print_losses(False)
    return True


def _require_listener(address: str | None) -> None:
    """Refuse an address where nobody listens: Ray itself would try for minutes."""
    host, _, port = (address or "").removeprefix("ray://").rpartition(":")
    if not host or not port.isdecimal():
        return
    try:
        socket.create_connection((host, int(port)), timeout=_LISTENER_LIMIT).close()
    except OSError as error:
        raise WorkerError(f"Cannot join Ray at {address!r}: {error}.") from error


def _print_losses(on: bool) -> None:
    """Whether Ray prints a paragraph on standard output for every worker lost; ours go to the ledger."""
    module = sys.modules.get("ray._private.worker")
    if hasattr(module, "_worker_logs_enabled"):  # Ray has no public switch for this
        setattr(module, "_worker_logs_enabled", on)  # noqa: B010


def _store_size(nbytes: int) -> int:
    """Bytes of the object store: the data, and room for broadcasts and results; taken only when used."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return int(min(1.25 * nbytes + min(4 * _GIB, memory / 4), 0.6 * memory))


def _place(ray: Any, options: EngineOptions) -> tuple[str, float]:
    """The device that an actor uses, and its share of a card."""
    joined = options.address is not None
    cards = int(ray.cluster_resources().get("GPU", 0)) if joined else torch.cuda.device_count()
    if resolve_device(options, cards) == "cpu":
        return "cpu", 0.0
    if options.gpus_per_worker != "auto":
        return "cuda:0", options.gpus_per_worker
    return "cuda:0", 1.0 / math.ceil(options.count / cards)


def _check_resources(ray: Any, workers: int, share: float) -> None:
    """Refuse what Ray could never place: it would wait for ever."""
    end = time.monotonic() + _RESOURCE_LIMIT
    while True:
        free = ray.available_resources()
        cpus, cards = free.get("CPU", 0.0), free.get("GPU", 0.0)
        if cpus >= workers and cards + 1e-6 >= workers * share:
            return
        if time.monotonic() > end:
            raise WorkerError(
                f"engine.workers = {workers} needs {workers} CPUs and {workers * share:g} GPUs of Ray, "
                f"which has {cpus:g} and {cards:g} free: lower engine.workers or end what else runs there."
            )
        time.sleep(0.2)


@contextmanager
def _own_ending() -> Iterator[None]:
    """Keep the caller's handler of SIGTERM; Ray sets its own, which exit, while it starts."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    except SystemExit as ended:
        raise KeyboardInterrupt from ended
    finally:
        if callable(before) and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep Ray's own warnings (open files, advice on future versions) out of the caller's filters."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
