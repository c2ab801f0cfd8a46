"""Trackers receive every round's metrics, and a missing one is named before anything runs."""

import sys
from types import ModuleType, SimpleNamespace

import pytest

from fedsim.errors import ConfigError
from fedsim.report.trackers import TRACKERS, MLflow, Observers, TensorBoard

ROUNDS = [
    {"round": 1, "metrics": {"test_accuracy": 0.25, "client_val_loss": None}},
    {"round": 2, "metrics": {"test_accuracy": 0.5, "client_val_loss": 1.5}},
]
EXPERIMENT = SimpleNamespace(
    name="skew", digest=lambda: "abc", model_dump=lambda mode: {"rounds": 2, "model": {"kind": "mlp"}}
)
PARTS = SimpleNamespace(experiment=EXPERIMENT, seed=7)


class Writer:
    def __init__(self, folder):
        self.folder, self.points, self.closed = folder, [], False

    def add_scalar(self, name, value, step):
        self.points.append((step, name, value))

    def flush(self):
        pass

    def close(self):
        self.closed = True


class Client:
    def __init__(self, store):
        self.store, self.points, self.params, self.status = store, [], {}, None

    def get_experiment_by_name(self, name):
        return None

    def create_experiment(self, name):
        return f"experiment of {name}"

    def create_run(self, experiment, tags):
        self.experiment, self.tags = experiment, tags
        return SimpleNamespace(info=SimpleNamespace(run_id="r"))

    def log_param(self, run, key, value):
        self.params[key] = value

    def log_metric(self, run, name, value, step):
        self.points.append((step, name, value))

    def set_terminated(self, run, status):
        self.status = status


def module(monkeypatch, name, **attributes):
    made = ModuleType(name)
    vars(made).update(attributes)
    monkeypatch.setitem(sys.modules, name, made)


def play(tracker, folder, status):
    tracker.seed_started(PARTS, folder, 0)
    for record in ROUNDS:
        tracker.round_finished(record)
    tracker.seed_finished(SimpleNamespace(status=status))


POINTS = [(1, "test_accuracy", 0.25), (2, "test_accuracy", 0.5), (2, "client_val_loss", 1.5)]


def test_tensorboard_gets_scalars_by_round(monkeypatch, tmp_path):
    made = []
    module(
        monkeypatch,
        "torch.utils.tensorboard",
        SummaryWriter=lambda folder: made.append(Writer(folder)) or made[-1],
    )
    play(TensorBoard(), tmp_path, "completed")
    (writer,) = made
    assert writer.folder == str(tmp_path / "tensorboard")
    assert (writer.points, writer.closed) == (POINTS, True)


@pytest.mark.parametrize(("status", "told"), [("completed", "FINISHED"), ("failed", "FAILED")])
def test_mlflow_gets_a_run_per_seed(monkeypatch, tmp_path, status, told):
    made = []
    module(monkeypatch, "mlflow", MlflowClient=lambda store: made.append(Client(store)) or made[-1])
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    play(MLflow(), tmp_path, status)
    (client,) = made
    assert client.store == f"sqlite:///{tmp_path / 'mlflow.db'}"
    assert (client.points, client.status, client.params["seed"]) == (POINTS, told, 7)
    assert client.tags["fedsim.digest"] == "abc"


@pytest.mark.parametrize("name", sorted(TRACKERS))
def test_a_tracker_that_is_not_installed_is_named(monkeypatch, name):
    monkeypatch.setitem(
        sys.modules, {"tensorboard": "torch.utils.tensorboard", "mlflow": "mlflow"}[name], None
    )
    with pytest.raises(
        ConfigError, match=rf"'{name}' is not installed: pip install 'fedsim-flower\[{name}\]'"
    ):
        TRACKERS[name]()


def test_a_seed_that_was_finished_before_is_not_tracked(monkeypatch):
    module(monkeypatch, "torch.utils.tensorboard", SummaryWriter=Writer)
    module(monkeypatch, "mlflow", MlflowClient=Client)
    Observers([TensorBoard(), MLflow()]).seed_finished(SimpleNamespace(status="completed"))
