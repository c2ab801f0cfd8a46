"""Our ClientApp behind a grid gives the numbers of the engine, to the bit."""

import shlex

import pytest
import torch
from flwr.app import Context, RecordDict

from fedsim.config import load
from fedsim.engine.options import EngineOptions
from fedsim.engine.protocols import Task, WorkerPlace
from fedsim.errors import ConfigError
from fedsim.federation import EvaluateOrder, TrainOrder
from fedsim.flower.client_app import experiment_of, handler_of
from fedsim.flower.tier_t0 import local_grid_federation
from fedsim.params import digest
from fedsim.run.assembly import assemble
from fedsim.run.private_store import PrivateStore
from fedsim.run.runner import run
from fedsim.run.transports import LocalTransport
from fedsim.training.handler import TrainingSetup

FILE = """
rounds = 3
engine.workers = 1
seeds = [5]
federation = { clients = 5, clients_per_round = 3, partition = { kind = "dirichlet", alpha = 0.5 } }
model = { kind = "mlp", hidden = [16] }
client.epochs = 1
client.batch_size = 32
client.keep_optimizer = true  # private state
client.optimizer = { kind = "sgd", learning_rate = 0.1, momentum = 0.9 }
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "tiers.toml"
    path.write_text(FILE)
    return path


def outcome(file, out, *overrides):
    experiment = load(file, overrides)
    (one,) = run(experiment, out, federation_of=LocalTransport(file, overrides))
    assert one.status == "completed", one.result["reason"]
    return one.result


def test_t0_is_t1_to_the_bit_on_one_and_two_workers(file, tmp_path):
    reference = outcome(file, tmp_path / "t1", "engine.tier=T1")
    for workers in (1, 2):
        found = outcome(file, tmp_path / f"t0-{workers}", "engine.tier=T0", f"engine.workers={workers}")
        assert found["model_sha256"] == reference["model_sha256"]
        assert found["metrics"] == reference["metrics"]


def test_t0_tells_where_its_time_goes(file, tmp_path):
    timing = outcome(file, tmp_path / "t0", "engine.tier=T0")["timing"]
    assert timing["train"] > 0
    assert timing["evaluate"] > 0
    assert timing["serialise"] > 0
    assert timing["wait"] > 0


def test_t0_cuts_the_cohort_into_chunks_of_the_declared_size(file, tmp_path, monkeypatch):
    parts = assemble(load(file, ("engine.tier=T0", "engine.chunk=2")), 5)
    federation = LocalTransport(file, ("engine.tier=T0",))(parts, PrivateStore(tmp_path / "private"))
    engine, seen = federation._grid._engine, []
    compute = engine.run
    monkeypatch.setattr(engine, "run", lambda b, tasks, r: seen.extend(tasks) or compute(b, tasks, r))
    results = federation.train(TrainOrder(1, parts.layout.flatten(parts.initial), {}), range(5))
    federation.close()
    assert [task.items for task in seen] == [(0, 1), (2, 3), (4,)]
    assert [result.partition for result in results] == [0, 1, 2, 3, 4]


def test_every_client_answers_as_the_training_code_does(file, tmp_path):
    parts = assemble(load(file), 5)
    handler = TrainingSetup(parts.plugins.method, 5)(parts.data, WorkerPlace(0, torch.device("cpu")))
    vector = parts.layout.flatten(parts.initial)
    train, evaluate = TrainOrder(1, vector, {}), EvaluateOrder(1, vector, {})
    store = PrivateStore(tmp_path / "private")
    federation = local_grid_federation(EngineOptions(workers=1), file, (), clients=5, seed=5, store=store)
    try:
        for partition, found in enumerate(federation.train(train, range(5))):
            (expected,) = handler.run(train, Task((partition,), (None,)))
            assert digest({"u": found.update}) == digest({"u": expected.update})
            assert (found.examples, found.steps, found.metrics) == (
                expected.examples,
                expected.steps,
                expected.metrics,
            )
        for partition, found in enumerate(federation.evaluate(evaluate, range(5))):
            (expected,) = handler.run(evaluate, Task((partition,), (None,)))
            assert found == expected
    finally:
        federation.close()


def test_overrides_reach_the_clients_whatever_their_quotes(file):
    overrides = ("seeds=[5, 6]", 'data={kind = "digits"}', "rounds=9")
    config = {"experiment": str(file), "overrides": shlex.join(overrides)}
    assert experiment_of(config) == load(file, overrides)


def test_a_process_reads_its_data_once_per_seed(file):
    context = Context(1, 2, {"partition-id": 0}, RecordDict(), {"experiment": str(file), "overrides": ""})
    assert handler_of(context, 5) is handler_of(context, 5)


def test_an_experiment_that_is_not_in_the_app_is_named():
    with pytest.raises(ConfigError, match=r"experiment = 'nowhere.toml', which is no file of the app"):
        experiment_of({"experiment": "nowhere.toml"})
    with pytest.raises(ConfigError, match="experiment = ''"):
        experiment_of({})


def test_a_relative_experiment_is_found_on_the_path(file, monkeypatch):
    monkeypatch.syspath_prepend(str(file.parent))
    assert experiment_of({"experiment": "tiers.toml"}).rounds == 3


def test_private_tensors_lie_in_the_store_and_not_with_the_nodes(file, tmp_path):
    parts = assemble(load(file, ("engine.tier=T0",)), 5)
    store = PrivateStore(tmp_path / "private")
    federation = LocalTransport(file, ("engine.tier=T0",))(parts, store)
    federation.train(TrainOrder(1, parts.layout.flatten(parts.initial), {}), [0])
    assert store.get(0) is None
    federation.commit([0])
    assert list(federation._grid.state_of(0)) == []
    federation.close()
    assert store.get(0)
