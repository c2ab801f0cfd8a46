"""What workers see of the machine, for `fedsim check`."""

import os
from dataclasses import asdict, dataclass
from typing import Any

import torch

from fedsim.contracts import Failure
from fedsim.engine.options import EngineOptions, usable_cores
from fedsim.engine.protocols import Handler, Task, WorkerPlace
from fedsim.engine.start import start
from fedsim.errors import WorkerError


@dataclass(frozen=True)
class Sight:
    """One worker's view.

    Attributes:
        worker: its number.
        process: its process number.
        cores: cores that it may use.
        threads: threads that torch uses for one operation.
        device: where it trains.
        cards: names of the CUDA devices that it sees.
        card_memory: bytes of each of them.
    """

    worker: int
    process: int
    cores: int
    threads: int
    device: str
    cards: tuple[str, ...]
    card_memory: tuple[int, ...]


def probe(options: EngineOptions) -> list[dict[str, Any]]:
    """One `Sight` per worker as plain values; starts and ends an engine of its own.

    Raises:
        WorkerError: the workers cannot be started, or cannot use their device.
    """
    with start(options, _set_up, None) as engine:
        tasks = [Task((number,), (None,)) for number in range(engine.workers)]
        seen = engine.run(None, tasks, round=1)
    for result in seen.values():
        if isinstance(result, Failure):
            raise WorkerError(f"Worker {result.worker} cannot look around: {result.message}")
    return sorted(seen.values(), key=lambda sight: int(sight["worker"]))


@dataclass(frozen=True)
class _Observer:
    place: WorkerPlace

    def run(self, broadcast: Any, task: Task) -> list[dict[str, Any]]:
        torch.ones(1, device=self.place.device).sum().item()  # a card that is busy or broken shows here
        cards = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())]
        sight = Sight(
            worker=self.place.number,
            process=os.getpid(),
            cores=usable_cores(),
            threads=torch.get_num_threads(),
            device=str(self.place.device),
            cards=tuple(card.name for card in cards),
            card_memory=tuple(card.total_memory for card in cards),
        )
        return [asdict(sight) for _ in task.items]


def _set_up(data: Any, place: WorkerPlace) -> Handler:
    return _Observer(place)
