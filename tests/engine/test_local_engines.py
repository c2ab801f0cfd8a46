import os
import random
import time
from pathlib import Path

import pytest
import torch

from fedsim.engine.options import EngineOptions
from fedsim.engine.probe import probe
from fedsim.engine.protocols import Task
from fedsim.engine.start import start
from fedsim.errors import WorkerError


def tasks_of(items, payload=None):
    return [Task((item,), (payload,)) for item in items]


@pytest.fixture(scope="module")
def pair(actor, clients_data):
    with start(EngineOptions(workers=2), actor, clients_data) as engine:
        yield engine


@pytest.fixture(scope="module")
def alone(actor, clients_data):
    with start(EngineOptions(workers=1), actor, clients_data) as engine:
        yield engine


def test_results_come_in_the_order_of_items_and_do_not_depend_on_workers(actor, clients_data, alone, pair):
    draw = random.Random(0)
    items = draw.sample(range(100), 30)
    tasks = [
        Task(tuple(items[i : i + 4]), (None,) * len(items[i : i + 4]), draw.random()) for i in range(0, 30, 4)
    ]
    with start(EngineOptions(workers=4), actor, clients_data) as four:
        found = [engine.run(2.5, tasks, round=1) for engine in (alone, pair, four)]
    assert list(found[0]) == items
    assert list(found[0].items()) == list(found[1].items()) == list(found[2].items())
    assert [engine.workers for engine in (alone, pair, four)] == [1, 2, 4]


def test_one_worker_is_the_driver_itself(alone):
    assert alone.run(1.0, tasks_of([0], "pid"), round=1) == {0: os.getpid()}


def test_one_worker_with_a_deadline_is_a_process_that_can_be_ended(actor, clients_data):
    with start(EngineOptions(workers=1, deadline=3.0), actor, clients_data) as engine:
        results = engine.run(1.0, [Task((0,), ("hang",)), Task((1,), ("pid",))], round=1)
    assert results[0].kind == "deadline"
    assert results[1] != os.getpid()


def test_several_workers_are_processes_that_outlive_the_call(pair):
    first, second = (pair.run(1.0, tasks_of([0, 1], "pid"), round=1) for _ in range(2))
    assert first == second
    assert len({os.getpid(), *first.values()}) == 3


def test_a_worker_uses_one_thread_and_the_driver_gets_its_own_back(alone, pair):
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        assert alone.run(1.0, tasks_of([0], "threads"), round=1) == {0: 1}
        assert pair.run(1.0, tasks_of([0, 1], "threads"), round=1) == {0: 1, 1: 1}
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)


def test_large_broadcasts_payloads_and_results_arrive_whole(pair):
    broadcast = torch.arange(300_000, dtype=torch.float32)
    payload = torch.arange(200_000, dtype=torch.float64)

    def both(actor, broadcast, item):
        return broadcast * item

    def echo(tensor):
        return lambda actor, broadcast, item: (tensor, broadcast[:5])

    results = pair.run(broadcast, [*tasks_of([2], both), *tasks_of([3], echo(payload))], round=1)
    assert torch.equal(results[2], broadcast * 2)
    assert torch.equal(results[3][0], payload)
    results[3][0].add_(1)  # results belong to the driver


def test_data_is_held_once(actor):
    """Workers map the driver's copy: the mapping has no page of their own."""

    def pages(actor, broadcast, item):
        actor.data.sum()
        found = {}
        with open("/proc/self/smaps") as file:
            for line in file:
                key, _, value = line.partition(":")
                if "memfd:fedsim" in line:
                    found = {"mapped": line}
                elif found and value.endswith("kB\n"):
                    found[key] = int(value.split()[0])
                    if key == "Anonymous" and found["Rss"] > 10_000:
                        return found
        return {}

    data = torch.ones(8 * 2**20)
    with start(EngineOptions(workers=2), actor, data) as engine:
        for found in engine.run(1.0, tasks_of([0, 1], pages), round=1).values():
            assert found["Rss"] >= data.nbytes / 1024
            assert found["Anonymous"] == 0


def test_a_client_that_writes_to_its_data_harms_nobody_else(actor):
    def scribble(actor, broadcast, item):
        time.sleep(0.2 * item)
        before = actor.data.sum().item()
        actor.data.fill_(item + 5.0)
        return before

    data = torch.zeros(100_000)
    with start(EngineOptions(workers=2), actor, data) as engine:
        assert engine.run(1.0, tasks_of([0, 1], scribble), round=1) == {0: 0.0, 1: 0.0}
    assert data.sum() == 0


def test_repeated_starts_leave_nothing_behind(actor, clients_data, ended):
    def open_files():
        return len(os.listdir("/proc/self/fd"))

    shared, before, workers = set(os.listdir("/dev/shm")), open_files(), []
    for _ in range(3):
        engine = start(EngineOptions(workers=2), actor, [torch.zeros(100_000)])
        workers += engine.run(1.0, tasks_of([0, 1], "pid"), round=1).values()
        engine.close()
        engine.close()
    assert ended(workers)
    assert open_files() == before
    assert set(os.listdir("/dev/shm")) <= shared


def test_memory_and_files_stay_flat_over_many_calls(pair):
    def usage(actor=None, broadcast=None, item=None):
        resident = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        return resident, len(os.listdir("/proc/self/fd"))

    def result(actor, broadcast, item):
        return broadcast + item

    def measure():
        return [usage(), *pair.run(0, tasks_of([0, 1], usage), round=1).values()]

    def work(calls):
        for number in range(calls):
            pair.run(torch.ones(50_000), tasks_of([0, 1, 2], result), round=number)

    work(400)  # the allocator grows at first and then stays
    before = measure()
    work(200)
    for (memory_before, files_before), (memory, files) in zip(before, measure(), strict=True):
        assert files <= files_before
        assert memory - memory_before < 4 * 2**20


def test_more_workers_than_flower_allows_run_at_once(actor, tmp_path):
    count = min(32, (os.cpu_count() or 1) + 4) + 1
    folder = str(tmp_path)

    def meet(actor, broadcast, item):
        Path(folder, str(item)).touch()
        end = time.monotonic() + 60
        while len(os.listdir(folder)) < count and time.monotonic() < end:
            time.sleep(0.02)
        return len(os.listdir(folder))

    with start(EngineOptions(workers=count), actor, None) as engine:
        results = engine.run(1.0, tasks_of(range(count), meet), round=1)
    assert set(results.values()) == {count}


@pytest.mark.parametrize("workers", [1, 2])
def test_a_set_up_that_raises_is_told_with_its_traceback(workers):
    def set_up(data, place):
        return {}["the missing key"]

    with pytest.raises(
        WorkerError, match=r"(?s)Worker \d could.*KeyError: 'the missing key'.*in set_up"
    ) as error:
        start(EngineOptions(workers=workers), set_up, None)
    assert "Traceback" in str(error.value)


def test_a_worker_that_ends_before_it_is_ready_is_told():
    def set_up(data, place):
        os._exit(9)

    with pytest.raises(WorkerError, match=r"ended 2 times before it was ready.*exit code 9"):
        start(EngineOptions(workers=2), set_up, None)


def test_a_set_up_that_cannot_be_pickled_is_told(actor):
    with pytest.raises(WorkerError, match=r"cannot be sent to workers.*generator"):
        start(EngineOptions(workers=2), actor, (x for x in ()))


def test_a_module_that_starts_a_thread_gets_workers_that_were_not_forked(tmp_path, monkeypatch):
    (tmp_path / "threaded_module.py").write_text(
        "import threading, time\n"
        "threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()\n"
        "class Handler:\n"
        "    def run(self, broadcast, task):\n"
        "        return [threading.active_count() for _ in task.items]\n"
        "def set_up(data, place):\n"
        "    return Handler()\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    module = __import__("threaded_module")
    with start(EngineOptions(workers=2), module.set_up, None) as engine:
        threads = engine.run(None, tasks_of([0, 1]), round=1)
    assert threads == {0: 3, 1: 3}  # main, the module's, and the one that watches the parent


def test_probe_tells_what_each_worker_sees():
    first, second = probe(EngineOptions(workers=2, device="cpu"))
    assert (first["worker"], second["worker"]) == (0, 1)
    assert first["process"] != second["process"]
    assert first["threads"] == 1
    assert first["device"] == "cpu"
    assert first["cores"] == len(os.sched_getaffinity(0))
    assert len(first["cards"]) == torch.cuda.device_count()
