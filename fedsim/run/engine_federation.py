"""The round loop's clients in the engine's workers: no message per client, private state on the driver."""

import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import ceil
from typing import Any

from fedsim.contracts import Failure, LocalEvaluation, LocalUpdate, Tensors
from fedsim.engine.protocols import Engine, Handler, Incident, Setup, Task, WorkerPlace
from fedsim.federation import EvaluateOrder, Order, TrainOrder
from fedsim.run.private_store import PrivateStore

CHUNKS = 32  # at least so many in a large cohort, so that as many workers can share it
CHUNK_WORK = 2**28  # parameters times training examples of a chunk; heavier clients travel alone


def default_chunk(clients: int, work: float) -> int:
    """Clients per task, by declared sizes alone: never by workers, free memory or time.

    Args:
        clients: in the cohort.
        work: parameters times training examples of the average client.
    """
    fits = int(CHUNK_WORK // max(work, 1))
    return max(1, min(fits, ceil(clients / CHUNKS)))


@dataclass(frozen=True)
class Timed:
    """The first result of a task, who made it, and the seconds of the whole task."""

    result: Any
    worker: int
    seconds: float


@dataclass(frozen=True)
class TimedSetup:
    """A setup whose handlers tell how long each task took; picklable where `setup` is."""

    setup: Setup

    def __call__(self, data: Any, place: WorkerPlace) -> "TimedHandler":
        """The handler of one worker."""
        return TimedHandler(self.setup(data, place), place.number)


@dataclass(frozen=True)
class TimedHandler:
    """Wraps the first result of each task in `Timed`."""

    handler: Handler
    worker: int

    def run(self, broadcast: Any, task: Task) -> Sequence[Any]:
        """What the handler makes of the task."""
        begun = time.perf_counter()
        first, *others = self.handler.run(broadcast, task)
        return [Timed(first, self.worker, time.perf_counter() - begun), *others]


class EngineFederation:
    """`fedsim.federation.Federation` on an engine."""

    def __init__(
        self,
        engine: Engine,
        store: PrivateStore,
        sizes: Sequence[int],
        *,
        size: int,
        chunk: Callable[[int], int] | None = None,
        tier: str = "T1",
        timed: Mapping[str, float] | None = None,
    ) -> None:
        """Take over an engine; `close` ends it.

        Args:
            engine: its handlers run `TrainOrder` and `EvaluateOrder`.
            store: of private tensors.
            sizes: training examples by partition.
            size: d, values of the shared model.
            chunk: from the size of a cohort to clients per task; None: `default_chunk`.
            tier: of the engine's handlers.
            timed: seconds of a round by tier, where that decided; of it `timed` tells.
        """
        self.tier, self.timed = tier, dict(timed or {})
        self._engine, self._store, self._sizes = engine, store, sizes
        average = sum(sizes) / max(len(sizes), 1)
        self._chunk = chunk or partial(default_chunk, work=average * size)
        self._pending: dict[int, Tensors] = {}
        self._overhead = {"serialise": 0.0, "wait": 0.0}

    def train(self, order: TrainOrder, partitions: Sequence[int]) -> list[LocalUpdate | Failure]:
        """One result per partition, in the order given; private tensors stay here, uncommitted."""
        results = self._run(order, partitions)
        self._pending = {
            partition: result.private
            for partition, result in results.items()
            if isinstance(result, LocalUpdate)
        }
        return [_without_private(results[partition]) for partition in partitions]

    def commit(self, partitions: Sequence[int]) -> None:
        """Keep what these clients returned in the last `train`; drop the others'."""
        for partition in partitions:
            left = self._pending[partition]
            if left or self._store.get(partition) != {}:  # an empty mapping says that the client has begun
                self._store.put(partition, left)
        self._pending = {}

    def evaluate(self, order: EvaluateOrder, partitions: Sequence[int]) -> list[LocalEvaluation | Failure]:
        """Each client's own model on its own splits."""
        results = self._run(order, partitions)
        return [results[partition] for partition in partitions]

    @property
    def device(self) -> str:
        """Where clients compute."""
        return self._engine.device

    def take_incidents(self) -> Sequence[Incident]:
        """What the workers lost since the last call, and what was done about it."""
        return self._engine.take_incidents()

    def close(self) -> None:
        """End the workers."""
        self._engine.close()

    def take_overhead(self) -> dict[str, float]:
        """Seconds since the last call in which not even the busiest worker computed.

        `serialise`: the driver packed orders or unpacked results; `wait`: transport, and idling.
        """
        taken, self._overhead = self._overhead, {"serialise": 0.0, "wait": 0.0}
        return taken

    def _run(self, order: Order, partitions: Sequence[int]) -> Mapping[int, Any]:
        begun = time.perf_counter()
        found = self._engine.run(order, self._tasks(partitions), order.round)
        busy: defaultdict[int, float] = defaultdict(float)
        results = {}
        for partition, value in found.items():
            if isinstance(value, Timed):
                busy[value.worker] += value.seconds
                results[partition] = value.result
            else:  # the engine's own ledger entry for a lost client
                results[partition] = value
        packing = self._engine.take_packing()
        computing = max(busy.values(), default=0.0)
        self._overhead["serialise"] += packing
        self._overhead["wait"] += max(0.0, time.perf_counter() - begun - computing - packing)
        return results

    def _tasks(self, partitions: Sequence[int]) -> list[Task]:
        """The cohort cut in partition order."""
        chosen = sorted(partitions)
        length = self._chunk(len(chosen))
        groups = [tuple(chosen[start : start + length]) for start in range(0, len(chosen), length)]
        return [
            Task(
                items=group,
                payloads=tuple(self._store.get(partition) for partition in group),
                cost=float(sum(self._sizes[partition] for partition in group)),
            )
            for group in groups
        ]


def _without_private(result: LocalUpdate | Failure) -> LocalUpdate | Failure:
    if isinstance(result, LocalUpdate) and result.private:
        return replace(result, private={})
    return result
