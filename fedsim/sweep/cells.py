"""The cells of a sweep: every combination of its axes' values, each a validated experiment."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from fedsim.config import Experiment, parse
from fedsim.contracts import FederatedData
from fedsim.data.federate import federate
from fedsim.errors import ConfigError, FedsimError
from fedsim.run.adversary import Adversary
from fedsim.run.assembly import Parts, Plugins, build_plugins
from fedsim.run.clean_twin import is_honest, made_honest, without_attack
from fedsim.run.expectations import refuse_unknown
from fedsim.run.server_evaluation import ServerEvaluation, known_metrics
from fedsim.sweep.axes import Axis, union
from fedsim.sweep.file import Sweep
from fedsim.sweep.merge import changed
from fedsim.sweep.names import paths_of, refuse_unmeasurable
from fedsim.toml import nearest


@dataclass(frozen=True)
class Cell:
    """One combination of values.

    Attributes:
        choices: the label on each axis.
        experiment: with all seeds, on one worker in the process that plays it.
    """

    choices: Mapping[str, str]
    experiment: Experiment

    @property
    def name(self) -> str:
        """`attack=badnets, defence=krum`."""
        return ", ".join(f"{axis}={label}" for axis, label in self.choices.items())

    def with_seed(self, seed: int) -> Experiment:
        """Of a single run."""
        return self.experiment.model_copy(update={"seeds": (seed,)})


def cells_of(sweep: Sweep) -> list[Cell]:
    """All cells, the last axis fastest.

    Raises:
        FedsimError: with exit code 2, naming the cell: a key or value that is refused.
    """
    return [_cell(sweep, labels) for labels in itertools.product(*(axis.values for axis in sweep.axes))]


def _cell(sweep: Sweep, labels: Sequence[str]) -> Cell:
    choices = {axis.name: label for axis, label in zip(sweep.axes, labels, strict=True)}
    changes: dict[str, Any] = {}
    for axis in sweep.axes:
        changes = union(changes, axis.values[choices[axis.name]])
    with _Named(sweep, choices):
        experiment = parse(changed(sweep.base, changes))
        if experiment.engine.tier == "T0":
            raise ConfigError('engine.tier: a sweep plays its cells in "T1" or "T2", found "T0".')
        alone = {"backend": "in-process", "workers": 1, "address": None, "gpus_per_worker": "auto"}
        engine = experiment.engine.model_copy(update=alone)
        experiment = experiment.model_copy(update={"engine": engine})
        return Cell(choices, made_honest(experiment) if is_honest(experiment) else experiment)


class _Named:
    """Errors name the file and the cell."""

    def __init__(self, sweep: Sweep, choices: Mapping[str, str]) -> None:
        self._where = f"{sweep.file}: cell {', '.join(f'{axis}={label}' for axis, label in choices.items())}"

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, FedsimError) and error.exit_code == 2:
            raise ConfigError(f"{self._where}: {error}") from error


def check_cells(sweep: Sweep, cells: Sequence[Cell], seed: int) -> None:
    """Build every cell's parts as a run would, the data once for all cells that share it.

    Raises:
        ConfigError: naming the first cell that a run would refuse, or a metric of the report that none
            measures.
    """
    known: dict[str, FederatedData] = {}
    paths: dict[str, frozenset[str]] = {}
    for cell in cells:
        with _Named(sweep, cell.choices):
            paths[cell.name] = _check(cell.experiment, seed, known)
    try:
        refuse_unmeasurable(sweep.report, paths)
    except ConfigError as error:
        raise ConfigError(f"{sweep.file}: {error}") from None


def _check(experiment: Experiment, seed: int, known: dict[str, FederatedData]) -> frozenset[str]:
    """What the cell's runs can bring, see `fedsim.sweep.names`."""
    plugins = build_plugins(experiment, seed)
    parts = Parts(experiment, seed, plugins, _data(experiment, seed, plugins, known))
    server = ServerEvaluation.of(parts, torch.device("cpu"))
    metrics = known_metrics(parts, server)
    refuse_unknown(experiment, metrics)
    adversary = Adversary.of(parts)
    honest = without_attack(experiment)
    if honest is not None:
        build_plugins(honest, seed)
    after = experiment.rounds - adversary.threat.window[1] if adversary else 0
    return paths_of(_with_examples(metrics, parts.data), after)


def _with_examples(metrics: Sequence[str], data: FederatedData) -> list[str]:
    """Without what no client has examples for."""
    empty = [split for split in ("val", "test") if not any(len(getattr(one, split)) for one in data.clients)]
    prefixes = tuple(f"client_{alike}{split}_" for alike in ("", "mean_") for split in empty)
    return [name for name in metrics if not name.startswith(prefixes)]


def _data(
    experiment: Experiment, seed: int, plugins: Plugins, known: dict[str, FederatedData]
) -> FederatedData:
    federation = experiment.federation
    key = f"{experiment.data.model_dump_json()} {federation.model_dump_json()}"
    if key not in known:
        known[key] = federate(
            plugins.source,
            plugins.partition,
            federation.clients,
            federation.split,
            seed,
            trusted=federation.trusted,
        )
    return known[key]


def chosen(cells: Sequence[Cell], axes: Sequence[Axis], filters: Sequence[str]) -> list[Cell]:
    """The cells that pass all filters of the form `axis=label,label`.

    Raises:
        ConfigError: an axis or a label that the sweep does not have.
    """
    wanted: dict[str, set[str]] = {}
    for text in filters:
        name, labels = _filter(text, axes)
        wanted[name] = wanted.get(name, set()) | labels
    return [cell for cell in cells if all(cell.choices[name] in labels for name, labels in wanted.items())]


def _filter(text: str, axes: Sequence[Axis]) -> tuple[str, set[str]]:
    name, equals, rest = text.partition("=")
    names = [axis.name for axis in axes]
    if not equals or name not in names:
        raise ConfigError(f"--cells {text}: wanted axis=label,label; no axis {name!r}{nearest(name, names)}")
    known = list(next(axis for axis in axes if axis.name == name).values)
    labels = {rest} if rest in known else set(rest.split(","))
    for label in sorted(labels - set(known)):
        raise ConfigError(f"--cells {text}: axis {name!r} has no value {label!r}{nearest(label, known)}")
    return name, labels
