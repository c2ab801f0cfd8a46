import pytest
import torch

from fedsim.contracts import Failure, LocalEvaluation, LocalUpdate
from fedsim.engine.protocols import Task, WorkerPlace
from fedsim.federation import EvaluateOrder, TrainOrder
from fedsim.run.engine_federation import CHUNK_WORK, CHUNKS, EngineFederation, TimedSetup, default_chunk
from fedsim.run.private_store import PrivateStore


class Handler:
    """Counts rounds in the private tensors; client 3 always fails."""

    def run(self, broadcast, task):
        return [self.one(broadcast, *pair) for pair in zip(task.items, task.payloads, strict=True)]

    def one(self, order, partition, private):
        if isinstance(order, EvaluateOrder):
            return LocalEvaluation(partition, {})
        if partition == 3:
            return Failure(order.round, partition, 0, "exception", "boom")
        count = 0 if private is None else int(private["count"])
        kept = {"count": torch.tensor(count + 1)}
        return LocalUpdate(partition, torch.ones(1), {}, 1, 1, {}, {}, kept)


class Engine:
    workers = 1
    device = "cpu"

    def __init__(self):
        self.handler = TimedSetup(lambda data, place: Handler())(None, WorkerPlace(0, torch.device("cpu")))
        self.tasks = []
        self.closed = False
        self.incidents = []

    def run(self, broadcast, tasks, round):
        self.tasks = tasks
        return {
            item: result
            for task in tasks
            for item, result in zip(task.items, self.handler.run(broadcast, task), strict=True)
        }

    def take_packing(self):
        return 0.0

    def take_incidents(self):
        taken, self.incidents = self.incidents, []
        return taken

    def close(self):
        self.closed = True


@pytest.fixture
def engine():
    return Engine()


@pytest.fixture
def store(tmp_path):
    return PrivateStore(tmp_path)


def order(round_=1):
    return TrainOrder(round_, torch.zeros(1), {})


def federation(engine, store, **options):
    return EngineFederation(engine, store, [1, 2, 3, 4, 5, 6], size=10, **options)


def test_results_come_in_the_order_asked_without_private_tensors(engine, store):
    found = federation(engine, store).train(order(), [5, 3, 1])
    assert [one.partition for one in found] == [5, 3, 1]
    assert isinstance(found[1], Failure)
    assert found[0].private == {}


def test_private_tensors_change_with_a_commit_alone(engine, store):
    clients = federation(engine, store)
    clients.train(order(), [1, 2])
    assert store.get(1) is None
    clients.commit([1])
    clients.train(order(2), [1, 2])
    clients.commit([1, 2])
    assert store.get(1)["count"] == 2
    assert store.get(2)["count"] == 1


def test_a_cohort_is_cut_in_partition_order_with_costs_by_size(engine, store):
    federation(engine, store, chunk=lambda clients: 2).train(order(), [5, 0, 4])
    assert [task.items for task in engine.tasks] == [(0, 4), (5,)]
    assert [task.cost for task in engine.tasks] == [6.0, 6.0]


def test_an_evaluation_changes_nothing(engine, store):
    clients = federation(engine, store)
    found = clients.evaluate(EvaluateOrder(1, torch.zeros(1), {}), [2, 0])
    assert [one.partition for one in found] == [2, 0]
    assert store.snapshot() == ({}, {})


def test_close_ends_the_engine(engine, store):
    federation(engine, store).close()
    assert engine.closed


def test_waiting_is_told_once(engine, store):
    clients = federation(engine, store)
    clients.train(order(), [0])
    assert min(clients.take_overhead().values()) >= 0
    assert clients.take_overhead() == {"serialise": 0.0, "wait": 0.0}


@pytest.mark.parametrize(
    ("clients", "work", "chunk"),
    [
        (1, 1e3, 1),
        (CHUNKS, 1e3, 1),
        (10 * CHUNKS, 1e3, 10),
        (10 * CHUNKS, CHUNK_WORK / 4, 4),
        (10 * CHUNKS, 2.0 * CHUNK_WORK, 1),
        (5, 0, 1),
    ],
)
def test_default_chunks(clients, work, chunk):
    assert default_chunk(clients, work) == chunk


def test_times_are_told_once_per_task():
    setup = TimedSetup(lambda data, place: Handler())
    results = setup(None, WorkerPlace(4, torch.device("cpu"))).run(order(), Task((0, 1), (None, None)))
    assert results[0].worker == 4
    assert results[0].seconds > 0
    assert not isinstance(results[1], type(results[0]))
