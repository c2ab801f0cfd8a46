import random

import pytest

from fedsim.contracts import Failure
from fedsim.engine.events import Died, Done, Raised, Ready, Trouble
from fedsim.engine.pooled import PooledEngine
from fedsim.engine.protocols import Task
from fedsim.engine.schedule import Batch, Job, Queue, Trial, after_loss, divide
from fedsim.engine.share import pack
from fedsim.errors import WorkerError


def task(*items, cost=1.0):
    return Task(items, (None,) * len(items), cost)


def share(batch):
    return [job.task.items for job in batch.jobs]


def test_costly_tasks_go_first_and_to_the_least_loaded():
    tasks = [task(0, cost=1), task(1, cost=5), task(2, cost=3), task(3, cost=3), task(4, cost=1)]
    shares = divide(tasks, 2)
    assert {number: share(batch) for number, batch in shares.items()} == {
        0: [(1,), (0,), (4,)],
        1: [(2,), (3,)],
    }


def test_more_workers_than_tasks_leaves_some_without():
    assert sorted(divide([task(0), task(1)], 5)) == [0, 1]


def test_a_suspect_is_tried_whole_in_a_fresh_worker_and_the_rest_as_before():
    first, second = Job(task(1, 2)), Job(task(3))
    batches, culprit = after_loss([first, second], spotless=False, certain=False)
    assert culprit is None
    assert batches == [Batch((Job(task(1, 2), Trial.AGAIN),), fresh=True), Batch((second,))]


def test_a_second_loss_divides_the_task_into_items():
    batches, culprit = after_loss([Job(task(1, 2, cost=4), Trial.AGAIN)], spotless=True, certain=False)
    assert culprit is None
    assert batches[0].fresh
    assert batches[0].jobs == (Job(task(1, cost=2), Trial.ALONE), Job(task(2, cost=2), Trial.ALONE))


def test_an_item_is_blamed_only_in_a_worker_that_ran_nothing_before():
    jobs = [Job(task(1), Trial.ALONE), Job(task(2), Trial.ALONE)]
    batches, culprit = after_loss(jobs, spotless=False, certain=False)
    assert culprit is None
    assert [share(batch) for batch in batches] == [[(1,)], [(2,)]]
    assert all(batch.fresh for batch in batches)
    assert after_loss(jobs, spotless=True, certain=False)[1] == jobs[0]
    assert after_loss(jobs, spotless=False, certain=True)[1] == jobs[0]


def test_a_used_worker_does_not_take_what_needs_a_fresh_one():
    queue = Queue({}, [Batch((Job(task(1)),), fresh=True), Batch((Job(task(2)),))])
    assert share(queue.take(0, spotless=False)) == [(2,)]
    assert queue.take(0, spotless=False) is None
    assert share(queue.take(0, spotless=True)) == [(1,)]
    assert not queue


class Pretender:
    """A worker without a process: a culprit kills it, `poison` makes the next item after it do so."""

    def __init__(self, culprits, poison):
        self.culprits, self.poison = culprits, poison
        self.told, self.used = [Ready()], []

    def submit(self, broadcast, tasks):
        for left, todo in zip(reversed(range(len(tasks))), tasks, strict=True):
            for item in todo.items:
                if item in self.culprits or (self.used and self.used[-1] in self.poison):
                    kind = Raised if item % 2 else Died
                    self.told.append(kind(Trouble(f"item {item}")))
                    return
                self.used.append(item)
            self.told.append(Done(tuple(pack(item * broadcast) for item in todo.items), left == 0))

    def kill(self):
        self.told = []


class PretendedCrew:
    def __init__(self, culprits=(), poison=()):
        self.culprits, self.poison, self.hired, self.closed = culprits, poison, 0, 0

    def hire(self, number):
        self.hired += 1
        return Pretender(self.culprits, self.poison)

    def publish(self, broadcast):
        import contextlib

        return contextlib.nullcontext(broadcast)

    def hear(self, workers, timeout):
        return [(worker, worker.told.pop(0)) for worker in workers if worker.told]

    def close(self):
        self.closed += 1


@pytest.mark.parametrize("seed", range(60))
def test_exactly_the_culprits_are_named_and_all_others_finish(seed):
    draw = random.Random(seed)
    items = list(range(1, draw.randint(2, 25)))
    culprits = {item for item in items if draw.random() < draw.choice([0.0, 0.1, 0.5, 1.0])}
    poison = {item for item in items if draw.random() < 0.1}
    tasks = []
    left = list(items)
    while left:
        size = draw.randint(1, 6)
        tasks.append(task(*left[:size], cost=draw.random()))
        left = left[size:]
    crew = PretendedCrew(culprits, poison)
    with PooledEngine(crew, draw.randint(1, 5), None) as engine:
        results = engine.run(3, tasks, round=9)
    assert list(results) == items
    for item, result in results.items():
        if item in culprits:
            kind = "exception" if item % 2 else "died"
            assert isinstance(result, Failure)
            assert (result.round, result.partition, result.kind) == (9, item, kind)
            assert result.message == f"item {item}"
        else:
            assert result == 3 * item
    assert crew.closed == 1


def test_without_losses_nobody_is_hired_twice():
    crew = PretendedCrew()
    with PooledEngine(crew, 3, None) as engine:
        for _ in range(5):
            engine.run(1, [task(item) for item in range(1, 9)], round=1)
    assert crew.hired == 3


def test_one_culprit_costs_five_workers_at_most():
    crew = PretendedCrew(culprits={3})
    with PooledEngine(crew, 2, None) as engine:
        engine.run(1, [task(*range(1, 33)), task(40)], round=1)
    assert crew.hired - 2 <= 5


@pytest.mark.parametrize(
    ("tasks", "message"),
    [
        ([task(1), task(2, 1)], "occurs twice"),
        ([Task((1,), ())], "1 items and 0 payloads"),
        ([Task((), ())], "0 items"),
    ],
)
def test_malformed_calls_are_refused(tasks, message):
    with PooledEngine(PretendedCrew(), 1, None) as engine, pytest.raises(ValueError, match=message):
        engine.run(1, tasks, round=1)


def test_a_closed_engine_says_so():
    engine = PooledEngine(PretendedCrew(), 1, None)
    engine.close()
    engine.close()
    with pytest.raises(WorkerError, match="was closed"):
        engine.run(1, [task(1)], round=1)


def test_no_tasks_no_results():
    with PooledEngine(PretendedCrew(), 2, None) as engine:
        assert engine.run(1, [], round=1) == {}
