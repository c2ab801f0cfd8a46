"""Ray with two pretended cards: which one each worker sees, and how many share it."""

import gc
import os
from collections import Counter

import pytest
import torch

from fedsim.engine import ray_backend
from fedsim.engine.options import EngineOptions
from fedsim.engine.protocols import Task
from fedsim.engine.start import start
from fedsim.errors import ConfigError, WorkerError

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def cards():
    """A Ray session that believes in two cards; torch's count of them is the tests' own."""
    ray = ray_backend._import_ray()
    with ray_backend._quiet():
        ray.init(
            address="local",
            num_cpus=6,
            num_gpus=2,
            object_store_memory=100 * 2**20,
            include_dashboard=False,
            log_to_driver=False,
            logging_level="ERROR",
        )
    yield ray
    with ray_backend._quiet():
        ray.shutdown()
        gc.collect()


@pytest.fixture(autouse=True)
def two(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(ray_backend, "_RESOURCE_LIMIT", 2.0)


def options(workers, share="auto"):
    return EngineOptions(backend="ray", workers=workers, device="cuda", gpus_per_worker=share)


class Eyes:
    """Tells which cards its worker may see."""

    def run(self, broadcast, task):
        return [os.environ["CUDA_VISIBLE_DEVICES"] for _ in task.items]


def set_up(data, place):
    return Eyes()


def seen(monkeypatch, workers, share):
    """The cards that each of the workers sees; they compute on the CPU, since no card is really there."""
    device, found = ray_backend._place(ray_backend._import_ray(), options(workers, share))
    assert device == "cuda:0"  # the only card that an actor sees
    monkeypatch.setattr(ray_backend, "_place", lambda ray, options: ("cpu", found))
    with start(options(workers, share), set_up, None) as engine:
        tasks = [Task((item,), (None,)) for item in range(workers)]
        return found, list(engine.run(None, tasks, round=1).values())


def test_four_workers_share_two_cards_by_halves(cards, monkeypatch):
    share, visible = seen(monkeypatch, 4, "auto")
    assert share == 0.5
    assert Counter(visible) == {"0": 2, "1": 2}


def test_a_worker_of_half_a_card_sees_one_card_only(cards, monkeypatch):
    _, visible = seen(monkeypatch, 2, 0.5)
    assert Counter(visible) in ({"0": 2}, {"1": 2}, {"0": 1, "1": 1})
    assert all(len(one.split(",")) == 1 for one in visible)


def test_a_whole_card_each_is_never_shared(cards, monkeypatch):
    share, visible = seen(monkeypatch, 2, 1.0)
    assert share == 1.0
    assert sorted(visible) == ["0", "1"]


def test_more_workers_than_shares_are_refused(cards, monkeypatch):
    with pytest.raises(ConfigError, match=r"gpus_per_worker = 0.5 lets 4 workers share 2 CUDA devices"):
        ray_backend._place(cards, options(5, 0.5))
    monkeypatch.setattr(ray_backend, "_place", lambda ray, options: ("cpu", 0.5))
    with pytest.raises(WorkerError, match=r"needs 5 CPUs and 2.5 GPUs of Ray, which has 6 and 2 free"):
        start(options(5), set_up, None)
