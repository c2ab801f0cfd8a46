"""Metrics to TensorBoard or MLflow, for those who collect runs there; `rounds.jsonl` is written anyway.

Each is an extra: `pip install "fedsim-flower[tensorboard]"`, `pip install "fedsim-flower[mlflow]"`.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedsim.errors import ConfigError
from fedsim.run.assembly import Parts
from fedsim.run.outcome import Observer, Outcome, Silent


class TensorBoard(Silent):
    """Scalars by round, in the folder `tensorboard` of each seed."""

    def __init__(self) -> None:
        """Find the package.

        Raises:
            ConfigError: it is not installed.
        """
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise _missing("tensorboard") from error
        self._make: Callable[[str], Any] = SummaryWriter
        self._writer: Any = None

    def seed_started(self, parts: Parts, folder: Path, finished: int) -> None:
        """Open the seed's log."""
        self._writer = self._make(str(folder / "tensorboard"))

    def round_finished(self, record: Mapping[str, Any]) -> None:
        """Write a round's metrics."""
        for name, value in _numbers(record).items():
            self._writer.add_scalar(name, value, record["round"])
        self._writer.flush()

    def seed_finished(self, outcome: Outcome) -> None:
        """Close the log; a seed that was finished before has none."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None


class MLflow(Silent):
    """A run per seed, in the store that `MLFLOW_TRACKING_URI` names, else in `mlflow.db` of its folder."""

    def __init__(self) -> None:
        """Find the package.

        Raises:
            ConfigError: it is not installed.
        """
        try:
            from mlflow import MlflowClient
        except ImportError as error:
            raise _missing("mlflow") from error
        self._make: Callable[[str], Any] = MlflowClient
        self._client: Any = None
        self._run = ""

    def seed_started(self, parts: Parts, folder: Path, finished: int) -> None:
        """Open a run under the experiment's name."""
        store = os.environ.get("MLFLOW_TRACKING_URI", f"sqlite:///{folder.resolve() / 'mlflow.db'}")
        self._client, name = self._make(store), parts.experiment.name
        known = self._client.get_experiment_by_name(name)
        experiment = known.experiment_id if known else self._client.create_experiment(name)
        tags = {"fedsim.digest": parts.experiment.digest(), "mlflow.runName": f"{name}, seed {parts.seed}"}
        self._run = self._client.create_run(experiment, tags=tags).info.run_id
        for key, value in parts.experiment.model_dump(mode="json").items():
            self._client.log_param(self._run, key, str(value)[:500])
        self._client.log_param(self._run, "seed", parts.seed)

    def round_finished(self, record: Mapping[str, Any]) -> None:
        """Write a round's metrics."""
        for name, value in _numbers(record).items():
            self._client.log_metric(self._run, name, value, step=record["round"])

    def seed_finished(self, outcome: Outcome) -> None:
        """Close the run; a seed that was finished before has none."""
        if self._client is not None:
            status = "FAILED" if outcome.status == "failed" else "FINISHED"
            self._client.set_terminated(self._run, status)
            self._client = None


TRACKERS: Mapping[str, Callable[[], Observer]] = {"tensorboard": TensorBoard, "mlflow": MLflow}


class Observers:
    """Tells several observers, in order."""

    def __init__(self, observers: Sequence[Observer]) -> None:
        self._observers = tuple(observers)

    def seed_started(self, parts: Parts, folder: Path, finished: int) -> None:
        """A seed begins."""
        for observer in self._observers:
            observer.seed_started(parts, folder, finished)

    def round_finished(self, record: Mapping[str, Any]) -> None:
        """A line of rounds.jsonl was written."""
        for observer in self._observers:
            observer.round_finished(record)

    def seed_finished(self, outcome: Outcome) -> None:
        """A seed has ended, well or not."""
        for observer in self._observers:
            observer.seed_finished(outcome)

    def notice(self, line: str) -> None:
        """Something takes its time beside the rounds."""
        for observer in self._observers:
            observer.notice(line)


def _numbers(record: Mapping[str, Any]) -> dict[str, float]:
    return {name: value for name, value in record["metrics"].items() if value is not None}


def _missing(name: str) -> ConfigError:
    return ConfigError(f"track: {name!r} is not installed: pip install 'fedsim-flower[{name}]'.")
