import json
import os
import subprocess
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from fedsim.run import code

# Typer, PyG and Flower use what their own dependencies deprecate; tests turn warnings into errors.
with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    import torch_geometric.nn  # noqa: F401

    from fedsim.cli import main

QUICK = """
rounds = 4
federation = { clients = 6, clients_per_round = 4, partition = { kind = "dirichlet", alpha = 0.5 } }
model = { kind = "mlp", hidden = 16 }
engine = { workers = 1 }
evaluate = { clients_every = 2 }

[client]
kind = "supervised"
keep_optimizer = true
optimizer = { kind = "sgd", learning_rate = 0.1, momentum = 0.9 }
"""

# Client methods and a rule that misbehave as a test asks; `Counting` depends on its private tensors.
METHODS = '''
import os
import signal
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from clients.supervised import Supervised
from strategies.fedavg import FedAvg


@dataclass(frozen=True, kw_only=True)
class FaultyRule(FedAvg):
    """Raises where the test asks for it."""

    where: str = ""

    def __post_init__(self):
        if self.where == "making":
            raise RuntimeError("no rule")

    def init(self, model):
        return None if self.where == "init" else {}

    def step(self, state, cohort, server):
        if self.where == "step":
            raise SystemExit(0)
        return super().step(state, cohort, server)


@dataclass(frozen=True, kw_only=True)
class Counting(Supervised):
    """Counts its own rounds in a private tensor, and weighs its loss by the count."""

    kill_in_round: int = 0
    flag: str = ""

    def init(self, client, rng):
        return {"count": torch.rand(1, generator=rng), "flat": torch.zeros(2, 3)[:, :1]}

    def program(self, client, round):
        if round == self.kill_in_round and client.partition > 2 and not Path(self.flag).exists():
            Path(self.flag).write_text("killed")
            os.kill(os.getpid(), signal.SIGKILL)
        program = super().program(client, round)
        (phase,) = program.phases

        def losses(tensors, batch, context):
            values, buffers = phase.losses(tensors, batch, context)
            return values * (1 + 0.1 * context.private["count"]), buffers

        def trains(name):
            return name not in ("count", "flat")

        return replace(program, phases=(replace(phase, losses=losses, trains=trains),))

    def finish(self, before, after, private, downlink, steps):
        return {}, {**private, "count": private["count"] + 1}


@dataclass(frozen=True, kw_only=True)
class Faulty(Supervised):
    """Partitions in `raising` raise, those in `wild` send values that are not finite."""

    raising: tuple[int, ...] = ()
    wild: tuple[int, ...] = ()
    dying: tuple[int, ...] = ()
    refusing: tuple[int, ...] = ()

    def program(self, client, round):
        if client.partition in self.refusing:
            raise ValueError(f"client {client.partition} does not begin")
        if client.partition in self.dying:
            os._exit(9)
        program = super().program(client, round)
        if client.partition not in self.wild + self.raising:
            return program

        def project(tensors, context):
            if client.partition in self.raising:
                raise ValueError(f"client {client.partition} does not want to")
            return {name: tensor * float("nan") for name, tensor in tensors.items()}

        return replace(program, phases=tuple(replace(phase, project=project) for phase in program.phases))
'''


@dataclass(frozen=True)
class Done:
    """A finished command."""

    code: int
    out: str
    err: str
    folder: Path

    @property
    def result(self) -> dict[str, Any]:
        return json.loads((self.folder / "result.json").read_text())

    @property
    def sha(self) -> str:
        (line,) = [line for line in self.out.splitlines() if line.startswith("model_sha256 ")]
        return line.split()[1]

    @property
    def rounds(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.folder / "rounds.jsonl").read_text().splitlines()]


@pytest.fixture
def folder(tmp_path):
    """An experiment in a folder of its own, beside a module of client methods."""
    (tmp_path / "quick.toml").write_text(QUICK, encoding="utf-8")
    (tmp_path / "methods_of_a_test.py").write_text(METHODS, encoding="utf-8")
    return tmp_path


@pytest.fixture
def spawn(folder):
    """Runs the command in a process of its own."""

    def run(*words: str, out: str = "out", timeout: int = 400) -> Done:
        done = subprocess.run(
            [sys.executable, "-m", "fedsim", *words, *_where(folder, words, out)],
            cwd=folder,
            env={**os.environ, "FLWR_TELEMETRY_ENABLED": "0", "COLUMNS": "200"},
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        return Done(done.returncode, done.stdout, done.stderr, folder / out)

    return run


@pytest.fixture
def fedsim(folder, monkeypatch, capsys):
    """Runs the command in this process: the same code, without seconds of imports."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv("PYTHONPATH", os.environ.get("PYTHONPATH", ""))

    def run(*words: str, out: str | None = "out") -> Done:
        monkeypatch.setattr(sys, "argv", ["fedsim", *words, *_where(folder, words, out)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        seen = capsys.readouterr()
        code = ended.value.code
        return Done(code if isinstance(code, int) else 0, seen.out, seen.err, folder / (out or "runs"))

    return run


def _where(folder: Path, words: tuple[str, ...], out: str | None) -> list[str]:
    return ["--out", str(folder / out)] if words[0] == "run" and out else []


@pytest.fixture
def sets():
    """`--set` words from keys and values."""

    def make(*pairs: str) -> list[str]:
        return [word for pair in pairs for word in ("--set", pair)]

    return make


@pytest.fixture(autouse=True)
def sources_as_they_are(monkeypatch):
    """A file that is edited while the tests run makes this process no stranger to the ones it starts."""
    monkeypatch.setattr("fedsim.run.code._AT_START", code.own_digest())
