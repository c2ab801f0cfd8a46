import os
import socket

import pytest
import torch

from fedsim.engine.options import (
    EngineOptions,
    available_memory,
    check_memory,
    resolve_device,
    usable_cores,
    worker_device,
)
from fedsim.engine.start import start
from fedsim.errors import ConfigError, WorkerError


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"backend": "dask"}, "engine.backend must be 'in-process' or 'ray', found 'dask'"),
        ({"workers": 0}, "engine.workers must be at least 1, found 0"),
        ({"device": "gpu"}, "engine.device must be 'auto', 'cpu', 'cuda' or 'cuda:N', found 'gpu'"),
        ({"device": "cuda:"}, "found 'cuda:'"),
        ({"device": "cpu:0"}, "found 'cpu:0'"),
        ({"backend": "ray", "device": "cuda:1"}, "Ray deals out the cards"),
        ({"gpus_per_worker": 0.0}, r"must be 'auto' or lie in \(0, 1\], found 0.0"),
        ({"gpus_per_worker": 1.5}, "found 1.5"),
        ({"address": "auto"}, "set engine.backend = 'ray' or remove it"),
        ({"deadline": 0.0}, "engine.deadline must be above 0 seconds, found 0.0"),
    ],
)
def test_bad_values_are_refused_with_their_key(values, message):
    with pytest.raises(ConfigError, match=message):
        EngineOptions(**values)


@pytest.mark.parametrize(
    "values",
    [{"workers": 1}, {"device": "cuda:3"}, {"gpus_per_worker": 1.0}, {"deadline": 0.001}],
    ids=str,
)
def test_the_smallest_legal_values_are_accepted(values):
    EngineOptions(**values)


def test_workers_default_to_the_cores_but_eight_at_most():
    assert EngineOptions().count == min(usable_cores(), 8)
    assert EngineOptions(workers=40).count == 40


@pytest.mark.parametrize(
    ("device", "cards", "expected"),
    [
        ("auto", 0, "cpu"),
        ("auto", 2, "cuda"),
        ("cpu", 2, "cpu"),
        ("cuda", 1, "cuda"),
        ("cuda:1", 2, "cuda:1"),
    ],
)
def test_auto_takes_a_card_where_there_is_one(device, cards, expected):
    assert resolve_device(EngineOptions(device=device), cards) == expected


@pytest.mark.parametrize(("device", "cards"), [("cuda", 0), ("cuda:0", 0), ("cuda:2", 2)])
def test_asking_for_a_card_that_is_not_there_is_an_error(device, cards):
    with pytest.raises(ConfigError, match=f"'{device}', but workers see {cards} CUDA devices"):
        resolve_device(EngineOptions(device=device), cards)


def test_more_workers_than_fit_on_the_cards_is_an_error():
    fitting = EngineOptions(device="cuda", workers=6, gpus_per_worker=1 / 3)
    assert resolve_device(fitting, 2) == "cuda"
    with pytest.raises(ConfigError, match=r"lets 4 workers share 2 CUDA devices, but engine.workers is 5"):
        resolve_device(EngineOptions(device="cuda", workers=5, gpus_per_worker=0.4), 2)


def test_cards_are_dealt_out_in_turn(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert [worker_device("cuda", number).index for number in range(4)] == [0, 1, 0, 1]
    assert worker_device("cuda:1", 3) == torch.device("cuda", 1)
    assert worker_device("cpu", 3) == torch.device("cpu")


def test_more_workers_than_memory_holds_are_refused_before_any_starts():
    gib = 2**30
    check_memory(EngineOptions(workers=10), gib)
    check_memory(EngineOptions(workers=11), None)
    with pytest.raises(ConfigError, match=r"workers = 11 needs at least 1\.1 GiB of memory, 1\.0 GiB are"):
        check_memory(EngineOptions(workers=11), gib)
    with pytest.raises(ConfigError, match=r"lower engine\.workers"):
        start(EngineOptions(workers=10**6), None, None)


def test_available_memory_is_part_of_the_machine_s():
    found, total = available_memory(), os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert found is None or 0 < found <= total


def test_an_address_where_nobody_listens_is_told_at_once():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    with pytest.raises(WorkerError, match=rf"Cannot join Ray at '{address}': .*refused"):
        start(EngineOptions(backend="ray", workers=1, address=address), None, None)
