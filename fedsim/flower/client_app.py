"""fedsim as a Flower ClientApp: the component that `pyproject.toml` names, for `flwr run` and SuperNodes.

Run configuration: `experiment`, a file of the app bundle (or an absolute path), and `overrides`, its
`key.path=value` changes in one string, quoted as on a command line. The server runs from the same two
values, and every order carries the seed.
"""

import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from flwr.app import Context, UserConfig

import fedsim
from fedsim.config import Experiment, load
from fedsim.engine.options import EngineOptions, resolve_device, worker_device
from fedsim.engine.processes import working_driver
from fedsim.engine.protocols import Handler, Task, WorkerPlace
from fedsim.errors import ConfigError
from fedsim.flower.client_side import client_app
from fedsim.plugins import search_in
from fedsim.run.assembly import assemble
from fedsim.training.handler import TrainingSetup


def experiment_of(run_config: UserConfig) -> Experiment:
    """The experiment that a run configuration names.

    Raises:
        ConfigError: no such file, or its content is refused.
    """
    path = _found(str(run_config.get("experiment", "")))
    search_in(path.parent)
    return load(path, shlex.split(str(run_config.get("overrides", ""))))


def _found(named: str) -> Path:
    """The file, looked up in the app bundle, which Flower puts first on the path, then beside fedsim."""
    roots = [Path(entry) for entry in sys.path] + [Path(fedsim.__file__).parents[1]]
    for root in roots:
        if named and (root / named).is_file():  # an absolute path replaces its root
            return root / named
    raise ConfigError(
        f"The run configuration has experiment = {named!r}, which is no file of the app: use "
        "--run-config 'experiment=\"experiments/quickstart/experiment.toml\"', a path inside the app folder."
    )


@dataclass(frozen=True)
class Settled:
    """Runs a handler as in an engine's worker: one thread, and deterministic algorithms on CUDA.

    Flower's own processes are set to neither, and last bits depend on both.
    """

    handler: Handler
    device: torch.device

    def run(self, broadcast: Any, task: Task) -> Sequence[Any]:
        """What the handler makes of the task."""
        strict = self.device.type == "cpu" or torch.are_deterministic_algorithms_enabled()
        if strict and torch.get_num_threads() == 1:  # an engine's worker already; setting costs milliseconds
            return self.handler.run(broadcast, task)
        with working_driver(self.device):
            return self.handler.run(broadcast, task)


@lru_cache(maxsize=1)
def _built(experiment: str, overrides: str, seed: int) -> Handler:
    """Data and method of one seed; kept, because a process answers many messages."""
    whole = experiment_of({"experiment": experiment, "overrides": overrides})
    parts = assemble(whole, seed)
    options = EngineOptions(device=whole.engine.device)
    device = worker_device(resolve_device(options, torch.cuda.device_count()), 0)
    handler = TrainingSetup(parts.plugins.method, seed, parts.dtype)(parts.data, WorkerPlace(0, device))
    return Settled(handler, device)


def handler_of(context: Context, seed: int) -> Handler:
    """The handler of this process for a run configuration and a seed."""
    config = context.run_config
    return _built(str(config.get("experiment", "")), str(config.get("overrides", "")), seed)


app = client_app(handler_of)
