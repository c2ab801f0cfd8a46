import contextlib
import os
import signal
import time
from pathlib import Path

import pytest

from fedsim.contracts import Failure
from fedsim.engine.options import EngineOptions
from fedsim.engine.protocols import Task
from fedsim.engine.start import start

DEADLINE = 5.0  # seconds


@pytest.fixture(scope="module")
def engine(actor, clients_data):
    with start(EngineOptions(workers=2, deadline=DEADLINE), actor, clients_data) as engine:
        yield engine


@pytest.fixture(scope="module")
def healthy(engine):
    return dict(engine.run(1.0, [Task((item,), (None,)) for item in range(10)], round=1))


def chunk_with(payload):
    """Five clients of which the third misbehaves, and three other tasks."""
    chunk = Task((0, 1, 2, 3, 4), (None, None, payload, None, None), cost=5)
    return [chunk, Task((5, 6), (None, None)), Task((7,), (None,)), Task((8,), (None,))]


def check_only_item_two_failed(results, healthy):
    assert list(results) == list(range(9))
    assert isinstance(results[2], Failure)
    assert (results[2].round, results[2].partition) == (4, 2)
    assert results[2].worker in (0, 1)
    assert {item: result for item, result in results.items() if item != 2} == {
        item: result for item, result in healthy.items() if item not in (2, 9)
    }


@pytest.mark.parametrize(
    ("payload", "kind", "words"),
    [
        ("exit", "died", "ended with exit code 7"),
        ("sigkill", "died", "ended by SIGKILL"),
        ("segfault", "died", "ended by SIGSEGV"),
        ("raise", "exception", "ValueError: the client's own words"),
        ("leave", "exception", "SystemExit: 3"),
        ("hang", "deadline", "Not complete after 5 s"),
    ],
)
def test_the_culprit_of_a_chunk_is_named_and_the_others_finish(engine, healthy, payload, kind, words):
    results = engine.run(1.0, chunk_with(payload), round=4)
    check_only_item_two_failed(results, healthy)
    assert results[2].kind == kind
    assert words in results[2].message
    if payload == "segfault":
        assert "string_at" in results[2].traceback  # where the process was, for the ledger


def test_the_pool_is_whole_again_afterwards(engine):
    engine.run(1.0, [Task((0,), ("exit",)), Task((1,), (None,))], round=1)

    def linger(actor, broadcast, item):
        time.sleep(1.0)
        return os.getpid()

    processes = engine.run(1.0, [Task((item,), (linger,)) for item in range(2)], round=2)
    assert len(set(processes.values())) == 2


def test_a_result_that_cannot_be_pickled_costs_no_worker(engine):
    before = engine.run(1.0, [Task((item,), ("pid",)) for item in (0, 1)], round=1)
    results = engine.run(1.0, [Task((0, 1), ("unpicklable", "pid"))], round=2)
    assert results[0].kind == "exception"
    assert results[0].message.startswith("The result cannot be pickled: TypeError")
    assert results[1] in before.values()


def test_a_result_that_the_driver_cannot_read_is_a_failure(engine):
    def unreadable(actor, broadcast, item):
        class Trap:
            def __reduce__(self):
                return int, ("no number",)

        return Trap()

    results = engine.run(1.0, [Task((0, 1), (unreadable, None))], round=2)
    assert results[0].message.startswith("The driver cannot read the result: ValueError")
    assert isinstance(results[1], float)


def test_a_task_with_too_few_results_is_a_failure(clients_data):
    def set_up(data, place):
        class Short:
            def run(self, broadcast, task):
                return [0] * (len(task.items) - 1)

        return Short()

    for workers in (1, 2):
        with start(EngineOptions(workers=workers), set_up, None) as engine:
            results = engine.run(None, [Task((3,), (None,))], round=1)
        assert results[3].message == "ValueError: The handler returned 0 results for 1 items."


def test_what_fails_once_succeeds_when_it_is_tried_again(engine, tmp_path):
    mark = tmp_path / "tried"
    path = str(mark)

    def stumble(actor, broadcast, item):
        if not os.path.exists(path):
            Path(path).touch()
            os._exit(1)
        return "second time"

    results = engine.run(1.0, [Task((0, 1), (None, stumble)), Task((2,), (None,))], round=1)
    assert results[1] == "second time"
    assert not any(isinstance(result, Failure) for result in results.values())


def test_results_that_came_before_the_loss_are_not_computed_again(engine, tmp_path):
    folder = str(tmp_path)

    def count(actor, broadcast, item):
        with open(f"{folder}/{item}", "a") as file:
            file.write("x")
        return item

    tasks = [Task((0,), (count,), cost=9), Task((1,), ("exit",), cost=1), Task((2,), (None,), cost=20)]
    results = engine.run(1.0, tasks, round=1)
    assert results[0] == 0
    assert (tmp_path / "0").read_text() == "x"
    assert results[1].kind == "died"


def test_a_worker_lost_between_two_calls_is_replaced_without_blame(engine, ended):
    processes = engine.run(1.0, [Task((item,), ("pid",)) for item in (0, 1)], round=1)
    os.kill(processes[0], signal.SIGKILL)
    assert ended([processes[0]])
    results = engine.run(1.0, [Task((item,), ("pid",)) for item in (0, 1)], round=2)
    assert not any(isinstance(result, Failure) for result in results.values())


def test_the_loss_of_the_process_that_starts_workers_is_made_good(engine, ended):
    def parent(actor, broadcast, item):
        return os.getppid()

    def kill_parent(actor, broadcast, item):
        with contextlib.suppress(ProcessLookupError):
            os.kill(broadcast, signal.SIGKILL)
        time.sleep(30 if os.getppid() == broadcast else 0)

    nursery = engine.run(1.0, [Task((0,), (parent,))], round=1)[0]
    results = engine.run(nursery, [Task((0,), (kill_parent,)), Task((1,), (None,))], round=2)
    assert not any(isinstance(result, Failure) for result in results.values())


def test_what_a_killed_client_started_ends_with_it(engine, tmp_path, ended):
    path = str(tmp_path / "grandchild")

    def breed(actor, broadcast, item):
        child = os.fork()  # inherits the worker's socket
        if child == 0:
            time.sleep(600)
            os._exit(0)
        Path(path).write_text(str(child))
        os.kill(os.getpid(), signal.SIGKILL)

    results = engine.run(1.0, [Task((0,), (breed,)), Task((1,), (None,))], round=1)
    assert results[0].kind == "died"
    assert "SIGKILL" in results[0].message
    assert ended([int(Path(path).read_text())])


def test_one_in_process_worker_names_the_culprit_that_raises(actor, clients_data, healthy):
    with start(EngineOptions(workers=1), actor, clients_data) as engine:
        for payload, words in [("raise", "ValueError: the client's own words"), ("leave", "SystemExit: 3")]:
            results = engine.run(1.0, chunk_with(payload), round=4)
            check_only_item_two_failed(results, healthy)
            assert results[2].message == words
            assert "Traceback" in results[2].traceback


def told(engine):
    return [(one.kind, one.items, one.remedy) for one in engine.take_incidents()]


def test_a_cured_loss_leaves_a_trace(engine, tmp_path):
    engine.take_incidents()
    path = str(tmp_path / "tried")

    def stumble(actor, broadcast, item):
        if not os.path.exists(path):
            Path(path).touch()
            os._exit(1)
        return item

    engine.run(1.0, [Task((0, 1), (None, stumble)), Task((2,), (None,))], round=6)
    (one,) = engine.take_incidents()
    assert (one.round, one.kind, one.items, one.remedy) == (6, "died", (0, 1), "retried")
    assert "exit code 1" in one.message
    assert engine.take_incidents() == []


def test_every_step_to_the_culprit_leaves_a_trace(engine):
    engine.take_incidents()
    engine.run(1.0, chunk_with("exit"), round=4)
    chunk = (0, 1, 2, 3, 4)
    steps = told(engine)
    assert steps[:2] == [("died", chunk, "retried"), ("died", chunk, "split")]
    assert steps[-1] == ("died", (2,), "given up")


def test_a_worker_lost_without_work_leaves_a_trace(engine, ended):
    processes = engine.run(1.0, [Task((item,), ("pid",)) for item in (0, 1)], round=1)
    engine.take_incidents()
    os.kill(processes[0], signal.SIGKILL)
    assert ended([processes[0]])
    engine.run(1.0, [Task((item,), ("pid",)) for item in (0, 1)], round=2)
    (one,) = told(engine)  # under load the driver may hand it work before it sees that it is gone
    assert one == ("died", (), "replaced") or (one[0], one[2]) == ("died", "retried")


def test_the_driver_alone_leaves_the_same_trace(actor, clients_data):
    with start(EngineOptions(workers=1), actor, clients_data) as engine:
        engine.run(1.0, [Task((0, 1), (None, "raise"))], round=4)
        assert told(engine) == [
            ("exception", (0, 1), "retried"),
            ("exception", (0, 1), "split"),
            ("exception", (1,), "given up"),
        ]
        engine.run(1.0, [Task((0,), (None,))], round=5)
        assert told(engine) == []
