"""An owner in a federation verifies the run's model by itself, with files and the command alone."""

import json
import os
import sys

import pytest
from typer.testing import CliRunner

from fedsim.cli import app
from fedsim.watermark.sources import read_graph, write_graph
from fedsim.watermark.subgraphs import Graph

SOURCE = """
from dataclasses import dataclass
from pathlib import Path
from safetensors.torch import load_file
from fedsim.data.pool import NodePool

@dataclass(frozen=True, kw_only=True)
class Made:
    path: str

    def load(self):
        found = load_file(self.path)
        return (NodePool(name="made", x=found["x"], edge_index=found["edge_index"], y=found["y"], classes=4),)
"""
EXPERIMENT = """
name = "owned"
rounds = 12
data = {{ kind = "made_nodes:Made", path = "{folder}/data.safetensors" }}
federation = {{ clients = 2, clients_per_round = 2, partition = {{ kind = "iid" }}, split = [0.6, 0.2, 0.2] }}
model = {{ kind = "sage", hidden = 32, dropout = 0.1 }}
strategy = "fedavg"
evaluate = {{ every = 12, clients = "all", clients_every = 6 }}
engine = {{ backend = "in-process" }}

[client]
kind = "watermarked"
secret_file = "{folder}/secret.txt"
marks = 60
report = true

[client.method]
kind = "supervised"
epochs = 5
keep_optimizer = true
optimizer = {{ kind = "adam", learning_rate = 0.01 }}
"""


@pytest.fixture
def folder(world, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv("PYTHONPATH", os.environ.get("PYTHONPATH", ""))
    monkeypatch.delitem(sys.modules, "made_nodes", raising=False)  # of the test before
    write_graph(tmp_path / "data.safetensors", world.graph)
    (tmp_path / "made_nodes.py").write_text(SOURCE)
    (tmp_path / "secret.txt").write_text("0d" * 32)
    (tmp_path / "experiment.toml").write_text(EXPERIMENT.format(folder=tmp_path))
    return tmp_path


def fedsim(*words):
    return CliRunner().invoke(app, [*map(str, words)])


@pytest.mark.slow
def test_an_owner_verifies_the_model_of_its_federation(folder):
    file, keys = folder / "experiment.toml", folder / "keys"
    ran = fedsim("run", file, "--quiet", "--out", folder / "run")
    assert ran.exit_code == 0, ran.output
    done = fedsim("watermark", "export", file, "--out", keys)
    assert done.exit_code == 0, done.output
    suspect = folder / "run" / "model.safetensors"
    words = ["watermark", "verify", keys / "key-0.json", suspect, "--data", keys / "data-0.safetensors"]
    told = json.loads(fedsim(*words, "--null-sets", 0, "--json").output)
    assert told["marked"] is True
    last = json.loads((folder / "run" / "rounds.jsonl").read_text().splitlines()[-1])
    assert last["metrics"]["client_diagnostic_watermark_z"] == pytest.approx(told["key"]["z"], rel=1e-6)
    again = fedsim("watermark", "export", file, "--out", keys)
    assert again.exit_code == 2
    assert "a key that is written over is lost" in again.stderr


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("client.owners=[7]", "client.owners names 7, but the clients are fewer"),
        ("client={ kind = 'supervised' }", "its clients own no keys"),
    ],
)
def test_experiments_without_such_an_owner(folder, change, message):
    done = fedsim(
        "watermark", "export", folder / "experiment.toml", "--set", change, "--out", folder / "keys"
    )
    assert done.exit_code == 2
    assert message in done.stderr


def test_a_file_keeps_classes_that_no_node_has(world, tmp_path):
    wide = Graph(world.graph.x, world.graph.edge_index, world.graph.y, 9)
    write_graph(tmp_path / "g.safetensors", wide)
    assert read_graph(str(tmp_path / "g.safetensors")).classes == 9
