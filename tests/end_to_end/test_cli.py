"""Bad input gets one clear line and exit code 2, before any round."""

import json
import subprocess
import sys
import time

import pytest
import torch

from fedsim.run.stopwatch import PHASES


@pytest.fixture
def refused(fedsim, sets, tmp_path):
    """Runs with overrides that must be refused; returns the line."""

    def check(*overrides: str, file: str = "quick.toml", command: str = "run") -> str:
        done = fedsim(command, file, *sets(*overrides))
        assert done.code == 2, done.out + done.err
        assert done.err.count("\n") == 1, done.err
        assert "Traceback" not in done.err
        assert not done.folder.exists()
        assert "round 1" not in done.out
        return done.err

    return check


def test_a_missing_file(refused):
    assert "nothing.toml: no such file" in refused(file="nothing.toml")


def test_an_unknown_key(refused):
    assert "did you mean 'clients_per_round'?" in refused("federation.clients_per_rond=3")


def test_a_wrong_type(refused):
    assert 'rounds: found "ten", wanted an integer.' in refused("rounds=ten")


def test_an_unknown_plugin(refused):
    line = refused("strategy.kind=fedavgg")
    assert "strategy.kind: no strategies plugin is called 'fedavgg'; did you mean 'fedavg'?" in line


def test_an_unknown_key_of_a_plugin(refused):
    assert "unknown key 'client.optimizer.lr'" in refused("client.optimizer.lr=1")


def test_more_clients_per_round_than_clients(refused):
    assert "wanted at most federation.clients = 6" in refused("federation.clients_per_round=7")


def test_alpha_that_is_not_positive(refused):
    assert "federation.partition.alpha" in refused("federation.partition.alpha=0")


def test_a_data_set_that_is_nowhere(refused, monkeypatch, tmp_path):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("FEDSIM_DATA_MIRROR", str(tmp_path))
    assert "no/such-set" in refused('data={kind="hub", name="no/such-set"}')


def test_an_empty_partition(refused):
    assert "client" in refused("federation.clients=1700", "federation.partition=iid")


def test_an_expectation_on_nothing(refused):
    assert "did you mean 'test_accuracy'?" in refused("expect.test_acuracy.at_least=0.5")


def test_a_model_that_cannot_serve_the_data(refused):
    assert "gcn" in refused("model=gcn")


def test_a_method_whose_own_code_raises_is_named_with_its_line(refused):
    line = refused("client.kind=methods_of_a_test:Faulty", "client.refusing=[0]")
    assert (
        "client.kind: Faulty.program raised ValueError: client 0 does not begin (methods_of_a_test.py, line"
        in line
    )


@pytest.mark.parametrize("where", ["making", "init"])
def test_a_rule_whose_own_code_fails_before_round_1(refused, where):
    line = refused(f"strategy={{kind='methods_of_a_test:FaultyRule', where='{where}'}}")
    assert "strategy.kind: FaultyRule" in line


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a card")
def test_a_card_that_is_not_there(refused):
    assert "engine.device = 'cuda', but workers see 0" in refused("engine.device=cuda", "engine.workers=2")


def test_a_refused_run_leaves_no_folder_of_its_own_and_keeps_those_of_others(folder, fedsim, sets):
    bad = sets("strategy.kind=fedavgg")
    (folder / "mine").mkdir()
    assert fedsim("run", "quick.toml", *bad, out="mine").code == 2
    assert (folder / "mine").is_dir()
    (folder / "mine").rmdir()
    assert fedsim("run", "quick.toml", *bad, out=None).code == 2
    assert not (folder / "runs").exists()


def test_check_refuses_the_same(refused):
    assert "did you mean 'fedavg'?" in refused("strategy.kind=fedavgg", command="check")


def test_a_folder_in_use_is_not_overwritten(fedsim):
    first = fedsim("run", "quick.toml")
    again = fedsim("run", "quick.toml")
    assert (again.code, again.err.count("\n")) == (2, 1)
    assert "already holds something" in again.err
    assert again.result == first.result


def test_json_is_all_of_the_output(fedsim, sets):
    done = fedsim("run", "quick.toml", "--json", *sets("rounds=1"))
    assert done.code == 0, done.err
    whole = json.loads(done.out, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))
    assert whole["results"][0]["model_sha256"] == done.result["model_sha256"]


def test_every_file_of_a_run_is_there_and_valid(fedsim):
    done = fedsim("run", "quick.toml")
    assert done.code == 0, done.err
    names = {path.name for path in done.folder.iterdir()}
    assert {"manifest.json", "rounds.jsonl", "result.json", "model.safetensors", "curves.png"} <= names
    manifest = json.loads((done.folder / "manifest.json").read_text())
    assert manifest["config"]["client"]["optimizer"]["learning_rate"] == 0.1
    assert manifest["plugins"]["client"]["batch_size"] == "auto"  # a default that the file does not name
    assert manifest["versions"]["torch"]
    assert [len(record["cohort"]) for record in done.rounds] == [4, 4, 4, 4]
    assert set(done.result["timing"]) == {*PHASES}
    assert f"run directory {done.folder}" in done.out


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_list_doctor_and_check(fedsim):
    listed = fedsim("list")
    assert listed.code == 0
    assert "learning_rate: float, required" in listed.out
    assert "cannot be loaded" not in listed.out
    assert "torch" in fedsim("doctor").out
    checked = fedsim("check", "quick.toml")
    assert checked.code == 0, checked.err
    assert "leakage: 0 training examples also in a test split; 0 test examples of a client" in checked.out
    assert "overlap" not in checked.out
    assert "worker 0: device" in checked.out


def test_without_a_command_there_is_help(fedsim):
    assert "Commands" in fedsim("--help").out


def test_a_full_disk_is_one_line(fedsim, monkeypatch):
    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    done = fedsim("run", "quick.toml")
    assert (done.code, done.err) == (1, "fedsim: OSError: [Errno 28] No space left on device\n")


def test_a_process_of_its_own_ends_with_the_same_codes(spawn, sets):
    done = spawn("run", "quick.toml", *sets("strategy.kind=fedavgg"))
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert "did you mean 'fedavg'?" in done.err


def test_a_terminal_signal_ends_a_run_cleanly(folder):
    """SIGTERM in the middle of a run: one line, exit code 130, a result that says so, and resumable."""
    command = [sys.executable, "-m", "fedsim", "run", "quick.toml", "--set", "rounds=100000", "--out", "out"]
    with subprocess.Popen(
        command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as process:
        rounds = folder / "out" / "rounds.jsonl"
        end = time.monotonic() + 300
        while not (rounds.is_file() and rounds.stat().st_size) and time.monotonic() < end:
            time.sleep(0.1)
        process.terminate()
        _, err = process.communicate(timeout=120)
    assert process.returncode == 130
    assert err == "fedsim: interrupted; workers were ended. Go on with --resume.\n"
    result = json.loads((folder / "out" / "result.json").read_text())
    assert (result["status"], result["reason"]) == ("failed", "interrupted; continue with --resume")


OVERLAP = """
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedsim.data.pool import NodePool
import torch


@dataclass(frozen=True, kw_only=True)
class Ring:
    nodes: int = 60

    def load(self):
        at = torch.arange(self.nodes)
        edges = torch.stack([torch.cat([at, at.roll(1)]), torch.cat([at.roll(1), at])])
        y = at % 3
        return (NodePool(name="ring", x=at.float()[:, None], edge_index=edges, y=y, classes=3),)


@dataclass(frozen=True, kw_only=True)
class Sliding:
    def divide(self, items, clients, rng):
        return [np.arange(10 * number, 10 * number + 20) for number in range(clients)]


@dataclass(frozen=True, kw_only=True)
class Declared(Sliding):
    overlaps: ClassVar[bool] = True
"""


@pytest.mark.parametrize(
    ("partition", "words"),
    [
        ("Declared", "overlap: 40 examples are in several clients, as the partition declares"),
        ("Sliding", "overlap: 40 examples are in several clients (which no partition declares)"),
    ],
)
def test_check_counts_what_several_clients_hold(fedsim, folder, sets, partition, words):
    (folder / "overlap_of_a_test.py").write_text(OVERLAP)
    tables = ("data.kind=overlap_of_a_test:Ring", f"federation.partition.kind=overlap_of_a_test:{partition}")
    (folder / "nodes.toml").write_text("rounds = 1\nmodel = 'gcn'\nfederation.clients = 5\n")
    checked = fedsim("check", "nodes.toml", *sets(*tables))
    assert checked.code == 0, checked.err
    assert words in checked.out
