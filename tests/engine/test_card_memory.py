"""How many workers share a card: weighed in a worker, with a card that is not there."""

from dataclasses import dataclass

import pytest
import torch

from fedsim.contracts import Failure
from fedsim.engine.card_memory import CONTEXT, CudaMeter, Weight, fit_cards, weigh
from fedsim.engine.options import EngineOptions
from fedsim.engine.protocols import Task
from fedsim.errors import ConfigError, WorkerError

GIB = 2**30
SEEN: list[tuple[str, torch.device]] = []  # in the worker's own process


@dataclass(frozen=True)
class PretendedMeter:
    """A card of 80 GiB on which the largest tensor made since `reset` is the peak."""

    def reset(self, device):
        SEEN.append(("reset", device))

    def peak(self, device):
        assert SEEN[0] == ("reset", device)  # before the worker took its data
        return max(size for name, size in SEEN if name == "bytes")

    def total(self, device):
        return 80 * GIB


class Trainer:
    """Takes memory by the number of its client."""

    def run(self, broadcast, task):
        SEEN.extend(("bytes", broadcast * item) for item in task.items)
        return [self.one(item) for item in task.items]

    def one(self, item):
        if item == 13:
            return Failure(1, item, 0, "exception", "CUDA out of memory", "")
        return "an update that nobody wants"


def set_up(data, place):
    SEEN.append(("bytes", data if isinstance(data, int) else 0))
    return Trainer()


def weighed(*items, data=5):
    return weigh(
        EngineOptions(device="cpu", workers=4, gpus_per_worker=0.5),
        set_up,
        data,
        broadcast=1000,
        task=Task(items, (None,) * len(items)),
        meter=PretendedMeter(),
    )


def never():
    raise AssertionError("nothing had to be weighed")


def options(workers=None, device="cuda", **others):
    return EngineOptions(workers=workers, device=device, **others)


def test_a_worker_is_weighed_at_the_peak_of_its_task_and_of_its_data():
    assert weighed(2, 7, 3) == Weight(peak=7000, total=80 * GIB)
    assert weighed(2, 7, 3, data=9000) == Weight(peak=9000, total=80 * GIB)
    held = weighed(2, 7, 3, data=torch.zeros(10_000))  # met one by one, all of it is there in the end
    assert held.peak == 7000 + 2 * 40_000
    assert SEEN == []  # all of it happened in another process, which is gone


def test_a_client_that_does_not_fit_alone_is_told():
    with pytest.raises(WorkerError, match="cannot train its largest clients: CUDA out of memory"):
        weighed(2, 13)


@pytest.mark.parametrize(
    ("gib", "fitting"), [(9.9 - CONTEXT / GIB, 7), (72 - CONTEXT / GIB, 1), (72.1 - CONTEXT / GIB, 0)]
)
def test_nine_tenths_of_a_card_are_divided_by_a_worker_and_its_context(gib, fitting):
    assert Weight(int(gib * GIB), 80 * GIB).fitting == fitting


@pytest.mark.parametrize(
    ("workers", "cards", "share"), [(4, 1, 1 / 4), (4, 2, 1 / 2), (5, 2, 1 / 3), (8, 1, 1 / 8)]
)
def test_workers_are_spread_evenly_over_the_cards(workers, cards, share):
    fitted = fit_cards(options(workers), cards, lambda: Weight(GIB, 80 * GIB))
    assert (fitted.workers, fitted.gpus_per_worker) == (workers, share)


def test_where_the_number_is_left_open_no_more_than_fit_are_started(monkeypatch):
    monkeypatch.setattr("fedsim.engine.options.usable_cores", lambda: 16)
    heavy = Weight(20 * GIB, 80 * GIB)  # three on a card
    assert heavy.fitting == 3
    fitted = fit_cards(options(), 2, lambda: heavy)
    assert (fitted.workers, fitted.gpus_per_worker) == (6, 1 / 3)
    assert fit_cards(options(device="cuda:1"), 2, lambda: heavy).workers == 3  # one card was named
    with pytest.raises(ConfigError, match="so 0 fit"):
        fit_cards(options(), 2, lambda: Weight(80 * GIB, 80 * GIB))


def test_more_workers_than_fit_are_refused_with_what_each_takes():
    with pytest.raises(
        ConfigError, match=r"workers = 7 on 2 CUDA devices: a worker takes 20\.6 GiB, .*so 6 fit"
    ):
        fit_cards(options(7), 2, lambda: Weight(20 * GIB, 80 * GIB))


@pytest.mark.parametrize(
    ("asked", "cards"),
    [
        (options(2), 2),  # a card each
        (options(8, device="cpu"), 2),
        (options(8, device="auto"), 0),
        (options(8, gpus_per_worker=0.125), 1),
        (options(8, backend="ray", address="auto"), 1),  # other machines' cards
    ],
)
def test_nothing_is_weighed_where_nothing_is_shared_or_left_open(asked, cards):
    assert fit_cards(asked, cards, never) == asked


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA card")
def test_a_tensor_on_a_card_is_weighed():
    meter, device = CudaMeter(), torch.device("cuda", 0)
    meter.reset(device)
    block = torch.zeros(2**28, dtype=torch.uint8, device=device)
    del block
    assert meter.peak(device) >= 2**28
    assert meter.total(device) > 2**30
