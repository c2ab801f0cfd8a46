"""How many workers share a card: one is weighed first, as it trains the largest clients it may meet."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch

from fedsim.contracts import Failure
from fedsim.engine.crew import pack_holdings
from fedsim.engine.options import EngineOptions, resolve_device
from fedsim.engine.protocols import Handler, Setup, Task, WorkerPlace
from fedsim.engine.start import start
from fedsim.errors import ConfigError, WorkerError

CONTEXT = 600 * 2**20
"""Bytes of a card that a process takes beside its tensors: CUDA's context and the libraries' kernels."""
USABLE = 0.9
"""Share of a card that workers may fill; caches of the allocator are never packed without gaps."""
COPIES = 2
"""Of all data: in the end a worker has met every client; it keeps their data, and stacks of graphs."""
WEIGHING_LIMIT = 300.0  # seconds


class Meter(Protocol):
    """Memory of a device; picklable, so that it can be read in a worker."""

    def reset(self, device: torch.device) -> None:
        """Forget the peak."""
        ...

    def peak(self, device: torch.device) -> int:
        """Bytes at the peak since the last `reset`."""
        ...

    def total(self, device: torch.device) -> int:
        """Bytes that the device has."""
        ...


@dataclass(frozen=True)
class CudaMeter:
    """What torch's allocator tells of a card."""

    def reset(self, device: torch.device) -> None:
        """Forget the peak."""
        torch.cuda.reset_peak_memory_stats(device)

    def peak(self, device: torch.device) -> int:
        """Bytes at the peak since the last `reset`."""
        return torch.cuda.max_memory_allocated(device)

    def total(self, device: torch.device) -> int:
        """Bytes of the card."""
        return torch.cuda.get_device_properties(device).total_memory


@dataclass(frozen=True)
class Weight:
    """What one task takes of a device.

    Attributes:
        peak: bytes at the most, with the data that the worker will keep there.
        total: bytes of the device.
    """

    peak: int
    total: int

    @property
    def fitting(self) -> int:
        """Workers that one device holds."""
        return int(USABLE * self.total) // (self.peak + CONTEXT)


def weigh(
    options: EngineOptions,
    setup: Setup,
    data: Any,
    *,
    broadcast: Any,
    task: Task,
    meter: Meter | None = None,
) -> Weight:
    """Run a task once in a process of its own, which gives its memory back, and throw the results away.

    Args:
        options: of the device.
        setup: as for `start`.
        data: as for `start`.
        broadcast: of the task's round.
        task: the largest that a worker will be given.
        meter: None: `CudaMeter`.

    Raises:
        WorkerError: the task fails even alone on the card.
    """
    alone = replace(
        options,
        backend="in-process",
        workers=1,
        address=None,
        gpus_per_worker="auto",
        deadline=WEIGHING_LIMIT,
    )
    with start(alone, _ScalesSetup(setup, meter or CudaMeter()), data) as engine:
        found = engine.run(broadcast, [task], round=1)
    for result in found.values():
        if isinstance(result, Failure):
            raise WorkerError(f"One worker alone cannot train its largest clients: {result.message}")
    weight: Weight = next(iter(found.values()))
    return replace(weight, peak=weight.peak + COPIES * pack_holdings(setup, data).nbytes)


def fit_cards(options: EngineOptions, cards: int, weighed: Callable[[], Weight]) -> EngineOptions:
    """The options with `gpus_per_worker = "auto"` made a number, where cards are shared.

    Workers are spread evenly over the cards, as many on each as its memory holds. Where `workers` is left
    open, there are no more than fit. Nothing is weighed for workers that have a card each, on the CPU, or
    on a cluster that is joined (whose cards are elsewhere): these stay as they are.

    Args:
        options: as asked for.
        cards: of this machine.
        weighed: called at most once.

    Raises:
        ConfigError: the workers asked for need more memory than the cards have.
    """
    if options.gpus_per_worker != "auto" or options.address is not None:
        return options
    if resolve_device(options, cards) == "cpu":
        return options
    usable = 1 if ":" in options.device else cards
    if options.count <= usable:
        return options
    weight = weighed()
    most = weight.fitting * usable
    if most < (options.workers or 1):
        raise ConfigError(
            f"engine.workers = {options.count} on {usable} CUDA devices: a worker takes "
            f"{(weight.peak + CONTEXT) / 2**30:.1f} GiB, a device has {weight.total / 2**30:.1f}, so {most} "
            "fit: lower engine.workers, engine.chunk or client.batch_size."
        )
    workers = min(options.count, most)
    return replace(options, workers=workers, gpus_per_worker=1 / math.ceil(workers / usable))


@dataclass(frozen=True)
class _ScalesSetup:
    setup: Setup
    meter: Meter

    def __call__(self, data: Any, place: WorkerPlace) -> Handler:
        self.meter.reset(place.device)
        return _Scales(self.setup(data, place), self.meter, place.device)


@dataclass(frozen=True)
class _Scales:
    handler: Handler
    meter: Meter
    device: torch.device

    def run(self, broadcast: Any, task: Task) -> list[Any]:
        results = self.handler.run(broadcast, task)
        weight = Weight(self.meter.peak(self.device), self.meter.total(self.device))
        return [result if isinstance(result, Failure) else weight for result in results]
