"""The parts of one run, built from its experiment: plugins first (cheap to refuse), then data."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from fedsim import rng
from fedsim.config import Experiment
from fedsim.config_tables import Plugin
from fedsim.contracts import (
    ClientInfo,
    ClientMethod,
    FederatedData,
    LocalProgram,
    ModelBuilder,
    SmallestCohort,
    Strategy,
    Tensors,
)
from fedsim.data.federate import federate
from fedsim.data.pool import Partition, Source
from fedsim.errors import ConfigError, PluginError, attributed
from fedsim.params import Layout
from fedsim.plugins import build, describe
from fedsim.run.chain import Chain
from fedsim.threat import Attack
from fedsim.toml import shown
from fedsim.training.functional import model_tensors
from fedsim.training.initial import initial_model
from fedsim.training.template import SeededModel

DTYPES: Mapping[str, torch.dtype] = {"float32": torch.float32, "float64": torch.float64}


@dataclass(frozen=True)
class Plugins:
    """The objects that an experiment's tables describe."""

    source: Source
    partition: Partition
    builder: ModelBuilder
    method: ClientMethod
    strategy: Strategy
    attack: Attack | None

    def described(self) -> dict[str, Any]:
        """All fields with their defaults, for the manifest."""
        return {
            "data": describe(self.source),
            "federation.partition": describe(self.partition),
            "model": describe(self.builder),
            "client": describe(self.method),
            "strategy": describe(self.strategy),
            "attack": describe(self.attack),
        }


@dataclass(frozen=True)
class Parts:
    """Everything that one seed's rounds need, besides workers.

    Attributes:
        experiment: as validated.
        seed: of this run.
        plugins: the objects behind the tables.
        data: divided among the clients.
        settled_tier: the tier that is played, once workers have settled it.
    """

    experiment: Experiment
    seed: int
    plugins: Plugins
    data: FederatedData
    settled_tier: str | None = None

    @property
    def dtype(self) -> torch.dtype:
        """Of parameters and floating-point inputs."""
        return DTYPES[self.experiment.engine.dtype]

    @cached_property
    def program(self) -> LocalProgram:
        """Client 0's program of round 1, whose template is the server's too."""
        return self.program_of(0, 1)

    def program_of(self, partition: int, round: int) -> LocalProgram:
        """What a client does in a round, if it is honest.

        Raises:
            PluginError: the method's own code raised; its file and line are named.
        """
        method = self.plugins.method
        what = f"client.kind: {type(method).__name__}.program"
        with attributed(what, PluginError):
            found: Any = method.program(ClientInfo(partition, self.data.clients[partition]), round)
        if not isinstance(found, LocalProgram):
            raise PluginError(f"{what} returned {type(found).__name__}, wanted a LocalProgram.")
        return found

    @cached_property
    def initial(self) -> Tensors:
        """The shared tensors before round 1; none for a method whose class says `federates = False`."""
        shared, federates = self.program.is_shared, getattr(self.plugins.method, "federates", True)
        if federates and not any(shared(name) for name in model_tensors(self.program.model)):
            raise ConfigError(
                "client.kind: this method shares no tensor of the model, so nothing is federated."
            )
        return initial_model(self.plugins.method, self.data)

    @cached_property
    def layout(self) -> Layout:
        """Of the shared tensors, told apart from the model's buffers."""
        return Layout.of(self.initial, {name for name, _ in self.program.model.named_buffers()})

    @cached_property
    def malicious(self) -> tuple[int, ...]:
        """Malicious partitions, ascending; drawn by seed where the file gives their number."""
        attack = self.experiment.attack
        if attack is None:
            return ()
        if isinstance(attack.malicious, int):
            order = torch.randperm(len(self.data.clients), generator=rng.stream(self.seed, "malicious"))
            return tuple(sorted(order[: attack.malicious].tolist()))
        return tuple(sorted(attack.malicious))


def build_plugins(experiment: Experiment, seed: int) -> Plugins:
    """The objects behind an experiment's tables; nothing is loaded or computed yet.

    Raises:
        ConfigError: a plugin that does not exist, or a key that it refuses.
    """
    builder = build("models", _table(experiment.model), "model", rounds=experiment.rounds)
    model = SeededModel(builder, seed, DTYPES[experiment.engine.dtype])
    known = {"model": model, "rounds": experiment.rounds}
    attack = experiment.attack
    return Plugins(
        source=build("data", _table(experiment.data), "data"),
        partition=build("partitions", _table(experiment.federation.partition), "federation.partition"),
        builder=builder,
        method=build("clients", _table(experiment.client), "client", **known),
        strategy=_strategy(experiment),
        attack=None if attack is None else build("attacks", _table(attack), "attack", **known),
    )


def _strategy(experiment: Experiment) -> Strategy:
    """The rule, with what the table lists before and after it.

    Raises:
        ConfigError: see `build_plugins`; or a part needs trusted data, of which the server has none, or
            more clients in a round than there are.
    """
    table = _table(experiment.strategy)
    before, after = (_chained(table.pop(key, ()), key, experiment.rounds) for key in ("before", "after"))
    rule: Strategy = build("strategies", table, "strategy", rounds=experiment.rounds)
    for part in (*before, rule, *after):
        if getattr(part, "needs_trusted", False) and not experiment.federation.trusted:
            raise ConfigError(
                f"strategy: {type(part).__name__} needs training examples of the server's own: "
                "set federation.trusted to their number, such as 100."
            )
        _require_clients(part, experiment.federation.clients_per_round)
    return Chain(before=before, rule=rule, after=after) if before or after else rule


def _require_clients(part: Any, clients: int) -> None:
    """Refuse a rule that is defined for larger cohorts only."""
    need = getattr(part, "smallest_cohort", None)
    if isinstance(need, SmallestCohort) and need.least > clients:
        raise ConfigError(
            f"strategy: {need.rule} needs at least {need.least} clients in a round, found "
            f"federation.clients_per_round = {clients}: {need.change} or raise federation.clients_per_round."
        )


def _chained(tables: Any, key: str, rounds: int) -> tuple[Any, ...]:
    if not isinstance(tables, list | tuple):
        raise ConfigError(
            f'strategy.{key}: wanted a list of tables such as [{{ kind = "nnm" }}], found {shown(tables)}.'
        )
    built = []
    for number, table in enumerate(tables):
        path = f"strategy.{key}[{number}]"
        if not isinstance(table, str | Mapping):
            raise ConfigError(f"{path}: wanted a plugin's name or a table with a kind, found {shown(table)}.")
        built.append(build(key, {"kind": table} if isinstance(table, str) else table, path, rounds=rounds))
    return tuple(built)


def assemble(experiment: Experiment, seed: int) -> Parts:
    """Plugins and data of one seed.

    Raises:
        ConfigError: see `build_plugins`.
        DataError: the data cannot be had, or cannot be divided as asked.
    """
    plugins = build_plugins(experiment, seed)
    federation = experiment.federation
    data = federate(
        plugins.source,
        plugins.partition,
        federation.clients,
        federation.split,
        seed,
        trusted=federation.trusted,
    )
    return Parts(experiment, seed, plugins, data)


def _table(plugin: Plugin) -> dict[str, Any]:
    return {"kind": plugin.kind, **plugin.options}
