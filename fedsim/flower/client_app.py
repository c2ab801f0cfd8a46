"""fedsim as a Flower ClientApp: the component that `pyproject.toml` names, for `flwr run` and SuperNodes.

Run configuration: `experiment`, a file of the app bundle (or an absolute path), and `overrides`, its
`key.path=value` changes in one string, quoted as on a command line. The server runs from the same two
values, and every order carries the seed.
"""

import shlex
import sys
from functools import lru_cache
from pathlib import Path

import torch
from flwr.app import Context, UserConfig

import fedsim
from fedsim.config import Experiment, load
from fedsim.engine.contract import Handler, WorkerPlace
from fedsim.engine.options import EngineOptions, resolve_device, worker_device
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


@lru_cache(maxsize=1)
def _built(experiment: str, overrides: str, seed: int) -> Handler:
    """Data and method of one seed; kept, because a process answers many messages."""
    whole = experiment_of({"experiment": experiment, "overrides": overrides})
    parts = assemble(whole, seed)
    options = EngineOptions(device=whole.engine.device)
    device = worker_device(resolve_device(options, torch.cuda.device_count()), 0)
    return TrainingSetup(parts.plugins.method, seed, parts.dtype)(parts.data, WorkerPlace(0, device))


def handler_of(context: Context, seed: int) -> Handler:
    """The handler of this process for a run configuration and a seed."""
    config = context.run_config
    return _built(str(config.get("experiment", "")), str(config.get("overrides", "")), seed)


app = client_app(handler_of)
