import gc
import signal
import subprocess
import sys

import pytest
import torch

from fedsim.contracts import Failure
from fedsim.engine import ray_backend
from fedsim.engine.options import EngineOptions
from fedsim.engine.protocols import Task
from fedsim.engine.start import start
from fedsim.errors import WorkerError

SCRIPT = """
import os, sys, time
from fedsim.engine.protocols import Task
from fedsim.engine.options import EngineOptions
from fedsim.engine.start import start

class Handler:
    def __init__(self, factor):
        self.factor = factor
    def run(self, broadcast, task):
        if task.payloads[0] == "exit":
            os._exit(7)
        return [self.factor * payload for payload in task.payloads]

def set_up(data, place):
    return Handler(data)

with start(EngineOptions(backend="ray", workers={workers}, address={address!r}), set_up, 10) as engine:
    tasks = [Task((i,), (p,)) for i, p in enumerate([1, 2, {third!r}])]
    print(list(engine.run(None, tasks, round=1).values())[:2])
import ray
print(ray.is_initialized())
"""


@pytest.fixture(scope="module")
def cluster():
    """A Ray session that is not the engine's own, with room for four workers."""
    ray = ray_backend._import_ray()
    with ray_backend._quiet():
        ray.init(
            address="local",
            num_cpus=4,
            object_store_memory=200 * 2**20,
            include_dashboard=False,
            log_to_driver=False,
            logging_level="ERROR",
        )
    yield ray
    with ray_backend._quiet():
        ray.shutdown()
        gc.collect()


@pytest.fixture(scope="module")
def engine(cluster, actor, clients_data):
    with start(EngineOptions(backend="ray", workers=2, deadline=5.0), actor, clients_data) as engine:
        yield engine
    assert cluster.is_initialized()  # it was not the engine's to end


def run_script(**values):
    return subprocess.run(
        [sys.executable, "-W", "error", "-"],
        input=SCRIPT.format(**values),
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )


def test_results_are_those_of_the_driver(engine, actor, clients_data):
    tasks = [Task((item, item + 20), (None, None), cost=item) for item in range(9, 0, -1)]
    with start(EngineOptions(workers=1), actor, clients_data) as alone:
        expected = alone.run(2.5, tasks, round=1)
    assert list(engine.run(2.5, tasks, round=1).items()) == list(expected.items())


def test_actors_outlive_the_call_and_use_one_thread(engine):
    tasks = [Task((item,), ("pid",)) for item in range(2)]
    assert engine.run(1.0, tasks, round=1) == engine.run(1.0, tasks, round=2)
    threads = engine.run(1.0, [Task((item,), ("threads",)) for item in range(2)], round=3)
    assert threads == {0: 1, 1: 1}


def test_large_broadcasts_payloads_and_results_arrive_whole(engine):
    broadcast = torch.arange(300_000, dtype=torch.float32)
    payload = torch.arange(200_000, dtype=torch.float64)

    def both(tensor):
        return lambda actor, broadcast, item: (tensor, broadcast * item)

    results = engine.run(broadcast, [Task((2, 3), (both(payload), both(payload)))], round=1)
    assert torch.equal(results[2][1], broadcast * 2)
    assert torch.equal(results[3][0], payload)
    results[3][0].add_(1)  # results belong to the driver


def test_data_is_viewed_in_the_object_store_and_cannot_be_written(cluster, actor):
    def where(actor, broadcast, item):
        address = actor.data.data_ptr()
        with open("/proc/self/maps") as file:
            for line in file:
                first, last = (int(edge, 16) for edge in line.split()[0].split("-"))
                if first <= address + 8192 < last:
                    return line.split()[-2] if "(deleted)" in line else line.split()[-1], address % 64
        return None

    def scribble(actor, broadcast, item):
        actor.data.fill_(1.0)

    data = torch.zeros(100_000)
    with start(EngineOptions(backend="ray", workers=2), actor, data) as engine:
        for file, residue in engine.run(1.0, [Task((i,), (where,)) for i in range(2)], round=1).values():
            assert "plasma" in file
            assert residue == data.data_ptr() % 64
        results = engine.run(1.0, [Task((0,), (scribble,)), Task((1,), (None,))], round=2)
    assert results[0].kind == "died"
    assert "SIGSEGV" in results[0].message
    assert "Fatal Python error" in results[0].traceback


def test_the_culprit_of_a_chunk_is_named_and_the_others_finish(engine):
    expected = engine.run(1.0, [Task((item,), (None,)) for item in range(7)], round=3)
    chunk = Task((0, 1, 2, 3, 4), (None, None, "exit", None, None), cost=5)
    results = engine.run(1.0, [chunk, Task((5, 6), (None, None))], round=4)
    assert list(results) == list(range(7))
    assert results[2].kind == "died"
    assert (results[2].round, results[2].partition) == (4, 2)
    assert results[2].message.startswith("The worker's process ended")
    assert all(results[item] == expected[item] for item in results if item != 2)


@pytest.mark.slow
def test_a_client_that_hangs_meets_the_deadline(engine):
    results = engine.run(1.0, [Task((0,), ("hang",)), Task((1,), (None,))], round=1)
    assert (results[0].kind, results[0].message) == ("deadline", "Not complete after 5 s.")
    assert isinstance(results[1], float)


def test_a_client_that_raises_is_told_with_its_traceback(engine):
    results = engine.run(1.0, [Task((0,), ("raise",)), Task((1,), ("unpicklable",))], round=1)
    assert results[0].kind == results[1].kind == "exception"
    assert results[0].message == "ValueError: the client's own words"
    assert "in fail" in results[0].traceback
    assert results[1].message.startswith("The result cannot be pickled")


def test_a_set_up_that_raises_is_told_with_its_traceback(cluster):
    def set_up(data, place):
        return {}["the missing key"]

    with pytest.raises(WorkerError, match=r"(?s)Worker \d could.*KeyError: 'the missing key'.*in set_up"):
        start(EngineOptions(backend="ray", workers=1), set_up, None)


def test_more_workers_than_the_cluster_can_hold_is_an_error(cluster, actor, monkeypatch):
    monkeypatch.setattr(ray_backend, "_RESOURCE_LIMIT", 0.0)
    with pytest.raises(WorkerError, match="needs 9 CPUs and 0 GPUs of Ray, which has"):
        start(EngineOptions(backend="ray", workers=9), actor, None)


def test_another_process_joins_by_address_and_leaves_the_cluster_running(cluster, engine):
    address = cluster.get_runtime_context().gcs_address
    done = run_script(workers=1, address=address, third=3)
    assert (done.stdout, done.stderr) == ("[10, 20]\nFalse\n", "")
    assert not isinstance(engine.run(1.0, [Task((0,), (None,))], round=1)[0], Failure)


def test_an_address_where_nobody_answers_is_an_error(cluster):
    done = run_script(workers=1, address="no-such-scheme://nowhere", third=3)
    assert "WorkerError: Cannot join Ray at 'no-such-scheme://nowhere'" in done.stderr


@pytest.mark.slow
def test_a_local_start_is_quiet_and_ends_with_the_engine():
    done = run_script(workers=2, address=None, third="exit")
    assert (done.stdout, done.stderr, done.returncode) == ("[10, 20]\nFalse\n", "", 0)


def test_a_signal_while_ray_starts_interrupts_and_leaves_the_caller_s_handler():
    def own(number, frame):
        raise AssertionError("called too early")

    def start_and_be_told_to_end():
        signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(number))  # as Ray does
        signal.raise_signal(signal.SIGTERM)

    before = signal.signal(signal.SIGTERM, own)
    try:
        with pytest.raises(KeyboardInterrupt), ray_backend._own_ending():
            start_and_be_told_to_end()
        assert signal.getsignal(signal.SIGTERM) is own
    finally:
        signal.signal(signal.SIGTERM, before)
