"""`flwr run`, simulated and on SuperNodes: the same model as tier T1."""

import json
import signal
import subprocess
import sys

import pytest

from fedsim.config import load
from fedsim.flower import bundle, flower_processes
from fedsim.flower.flwr_run import _submit, _superlink
from fedsim.run.runner import run
from fedsim.run.transports import LocalTransport

pytestmark = pytest.mark.slow

FILE = """
rounds = 2
engine.workers = 1
federation = { clients = 2, clients_per_round = 2, partition = { kind = "dirichlet", alpha = 1.0 } }
client.epochs = 1
client.keep_optimizer = true  # private state, kept on the nodes
client.optimizer = { kind = "sgd", learning_rate = 0.1, momentum = 0.9 }
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "ours" / "experiment.toml"
    path.parent.mkdir()
    path.write_text(FILE)
    return path


def flwr_run(file, out, *arguments):
    command = [sys.executable, "-m", "fedsim.flower.flwr_run", str(file), "--out", str(out), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=400, cwd=file.parent)


@pytest.mark.parametrize("mode", [(), ("--deployment",)], ids=["simulation", "deployment"])
def test_flwr_run_gives_the_model_of_tier_t1(file, tmp_path, mode):
    (reference,) = run(load(file), tmp_path / "t1", federation_of=LocalTransport(file))
    done = flwr_run(file, tmp_path / "out", *mode)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"model_sha256 {reference.result['model_sha256']}" in done.stdout
    result = json.loads((tmp_path / "out" / "result.json").read_text())
    assert result["metrics"] == reference.result["metrics"]


def test_a_run_whose_clients_fail_exits_1_and_says_why(file, tmp_path):
    (file.parent / "broken.py").write_text(BROKEN)
    done = flwr_run(file, tmp_path / "out", "--set", "client={kind = 'broken:Broken'}")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "finished:failed" in done.stdout
    assert "2 of 2 clients failed to train" in done.stderr
    assert "ValueError: no luck" in done.stderr


BROKEN = """
from dataclasses import dataclass
from clients.supervised import Supervised
from fedsim.contracts import ModelBuilder


@dataclass(frozen=True, kw_only=True)
class Broken:
    model: ModelBuilder

    def init(self, client, rng):
        raise ValueError("no luck")

    def program(self, client, round):
        method = Supervised(model=self.model)
        return method.program(client, round)

    def finish(self, before, after, private, downlink, steps):
        return {}, private
"""


def test_an_interrupted_run_leaves_no_process_behind(file, tmp_path):
    command = [sys.executable, "-m", "fedsim.flower.flwr_run", str(file), "--out", str(tmp_path / "out")]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    # A shell's background job (`nohup ... &`) ignores interrupts, and so does every child of it
    with subprocess.Popen(command, **pipes, preexec_fn=_interruptible) as process:
        for line in process.stdout:
            if "Starting Flower Simulation" in line:
                break
        started = flower_processes._descendants(process.pid)
        assert len(started) >= 3  # flwr, SuperLink, SuperExec
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=120)
    assert process.returncode == 130, errors
    assert "Interrupted" in errors
    assert not [pid for pid in started if flower_processes._alive(pid)]


def _interruptible():
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def test_a_wrong_number_of_supernodes_is_refused_with_the_command(file, tmp_path):
    (tmp_path / "work").mkdir()
    bundle.stage(file, (), tmp_path / "out", tmp_path / "work" / "app")
    lines = []
    with _superlink(tmp_path / "work", file, deployment=False):
        settings = ["--federation-config", "num-supernodes=3 client-resources-num-cpus=1"]
        outcome = _submit(tmp_path / "work", file, settings, lines.append)
    assert (outcome.status, outcome.code) == ("finished:failed", 2), "\n".join(lines)
    assert "has 2 clients, but this federation has 3 SuperNodes" in outcome.reason
    assert '--federation-config "num-supernodes=2"' in outcome.reason
