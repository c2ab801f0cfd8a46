import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

# PyG uses what its own dependencies deprecate; tests turn warnings into errors.
with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    import torch_geometric.nn  # noqa: F401

from fedsim.run import code
from fedsim.sweep.collect import Row
from fedsim.sweep.command import sweep

TINY = """
seeds = [0, 1]
rounds = 3
federation = { clients = 4, clients_per_round = 4 }
model = "logistic"
client = { kind = "supervised", optimizer = { kind = "sgd", learning_rate = 0.1 } }
"""

PLUGINS = '''
import os
import signal
from dataclasses import dataclass
from pathlib import Path

import torch

from clients.supervised import Supervised
from fedsim.threat import Passive


@dataclass(frozen=True, kw_only=True)
class Patch(Passive):
    """A white corner, and updates that are `scale` times too long."""

    target: int = 0
    scale: float = 1.0

    def poison(self, state, batch):
        x = batch.x.clone()
        x[..., :2] = 1.0
        return batch._replace(x=x, y=torch.full_like(batch.y, self.target))

    def craft(self, state, view, rng):
        return view.own * self.scale


@dataclass(frozen=True, kw_only=True)
class Trouble(Supervised):
    """Raises, or ends its process, in one round; with a flag, only once."""

    raise_in: int = 0
    kill_in: int = 0
    flag: str = ""

    def program(self, client, round):
        if round == self.raise_in:
            raise ValueError("does not want to")
        if round == self.kill_in and not (self.flag and Path(self.flag).exists()):
            if self.flag:
                Path(self.flag).write_text("killed")
            os.kill(os.getpid(), signal.SIGKILL)
        return super().program(client, round)
'''


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A working directory with plugins of a test's own."""
    (tmp_path / "plugins_of_a_sweep.py").write_text(PLUGINS, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "plugins_of_a_sweep", raising=False)  # of the test before
    monkeypatch.setenv("PYTHONPATH", os.environ.get("PYTHONPATH", ""))
    return tmp_path


@pytest.fixture
def write(folder):
    """Writes a sweep file: the tiny experiment and the given tables."""

    def make(tables: str, base: str = TINY, name: str = "tiny.toml") -> Path:
        path = folder / name
        path.write_text(base + tables, encoding="utf-8")
        return path

    return make


@pytest.fixture
def play(folder):
    """Runs a sweep in this process, in the folder `out`."""

    def run(file: Path, *overrides: str, out: str = "out", jobs: int = 1, **options) -> int:
        return sweep(file, overrides, out=folder / out, jobs=jobs, **options)

    return run


@pytest.fixture
def spawn(folder):
    """Runs the command in a process of its own."""

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "fedsim", "sweep", *words],
            cwd=folder,
            env={**os.environ, "FLWR_TELEMETRY_ENABLED": "0"},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )

    return run


@pytest.fixture
def row():
    """A row of a table, from its labels and metrics."""

    def make(axes, seed=0, status="completed", **metrics):
        named = {name.replace("__", "."): value for name, value in metrics.items()}
        folder = f"runs/{'-'.join(axes.values())}/seed-{seed}"
        return Row(axes, seed, "0" * 64, folder, status, None, 1.0, named)

    return make


@pytest.fixture(autouse=True)
def sources_as_they_are(monkeypatch):
    """A file that is edited while the tests run makes this process no stranger to the ones it starts."""
    monkeypatch.setattr("fedsim.run.code._AT_START", code.own_digest())
    code._module_digest.cache_clear()  # plugins of the test before had the same name
