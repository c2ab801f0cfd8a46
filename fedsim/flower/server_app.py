"""fedsim as a Flower ServerApp: the same rounds as `fedsim run`, with clients behind Flower's grid.

Run configuration: `experiment` and `overrides` as in `client_app`, and optionally `output`, the folder of
results (default: `runs/NAME/TIME` in the SuperLink's working directory).

What it prints at the end is read by `flwr_run`, because `flwr run` itself exits 0 whatever happens:
`model_sha256 HASH` for each seed, then `fedsim_exit_code CODE`.
"""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from flwr.app import Context, UserConfig
from flwr.serverapp import Grid, ServerApp
from flwr.superlink.grid import HttpGrid

from fedsim.config import Experiment
from fedsim.errors import ConfigError, FedsimError, RoundError
from fedsim.federation import Federation
from fedsim.flower.client_app import experiment_of
from fedsim.flower.grid_federation import GridFederation
from fedsim.run.adversary import refuse_in_messages
from fedsim.run.assembly import Parts, build_plugins
from fedsim.run.directory import fresh_folder
from fedsim.run.outcome import Outcome, exit_code
from fedsim.run.private_store import PrivateStore
from fedsim.run.runner import run

app = ServerApp()
UNUSED = "note: engine.chunk and engine.private_memory are of no effect: a SuperNode holds its own client."


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Play the experiment of the run configuration.

    Raises:
        FedsimError: the run failed; Flower then marks it as failed.
    """
    try:
        outcomes = play(grid, context.run_config)
    except FedsimError as error:
        _say(f"Error: {error}")
        _say(f"fedsim_exit_code {error.exit_code}")
        raise
    code = exit_code(outcomes)
    _say(f"fedsim_exit_code {code}")
    if code:
        reasons = "; ".join(str(outcome.result["reason"]) for outcome in outcomes if outcome.exit_code)
        raise RoundError(f"The run ended with exit code {code}: {reasons}")


def play(grid: Grid, run_config: UserConfig) -> list[Outcome]:
    """All seeds of the experiment that the run configuration names."""
    experiment = experiment_of(run_config)
    _refuse_attack(grid, experiment)
    refuse_in_messages(build_plugins(experiment, experiment.seeds[0]).attack)
    if experiment.engine.chunk is not None or "private_memory" in experiment.engine.model_fields_set:
        _say(UNUSED)
    output = str(run_config.get("output", ""))
    folder = fresh_folder(experiment.name, Path(output) if output else None)
    return run(experiment, folder, federation_of=partial(grid_federation, grid), observer=Printed())


def grid_federation(grid: Grid, parts: Parts, store: PrivateStore) -> Federation:
    """The clients of one seed; their private tensors stay on their nodes, so the store is not used."""
    experiment = parts.experiment
    deadline = experiment.engine.deadline
    return GridFederation(grid, experiment.federation.clients, parts.seed, deadline=deadline)


def _refuse_attack(grid: Grid, experiment: Experiment) -> None:
    if experiment.attack is not None and isinstance(grid, HttpGrid):
        raise ConfigError(
            "attack: is played by the simulation, which knows all clients; SuperNodes stand for real ones. "
            "Remove the table, or run the experiment in simulation."
        )


class Printed:
    """Progress as lines of the ServerApp's log."""

    def __init__(self) -> None:
        self._rounds = 0

    def seed_started(self, parts: Parts, folder: Path, finished: int) -> None:
        """Where results go."""
        self._rounds = parts.experiment.rounds
        _say(f"seed {parts.seed}: {len(parts.data.clients)} clients, results in {folder.resolve()}")

    def round_finished(self, record: Mapping[str, Any]) -> None:
        """One line per round."""
        values = (f"{name} {value:.4f}" for name, value in record["metrics"].items() if value is not None)
        _say(f"round {record['round']}/{self._rounds}: {', '.join(values)}")

    def seed_finished(self, outcome: Outcome) -> None:
        """Status and the model's hash."""
        _say(f"seed {outcome.seed}: {outcome.status} {outcome.result.get('reason') or ''}".rstrip())
        if "model_sha256" in outcome.result:
            _say(f"model_sha256 {outcome.result['model_sha256']}")

    def notice(self, line: str) -> None:
        """A line of its own."""
        _say(line)


def _say(line: str) -> None:
    print(line, flush=True)
