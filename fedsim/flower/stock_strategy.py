"""Flower's own strategies as rules of the round loop: `kind = "flwr.serverapp.strategy:FedAvgM"`.

A stock rule is made anew for every step, given its state back, asked to configure a round for exactly
this cohort, and handed the replies in partition order. It sees named float arrays; integer tensors are
settled by the platform and never reach it. What a stock rule would tell its clients (FedProx) is refused
before round 1, because fedsim's clients read their method from the experiment file.

State: arrays, numbers and flags among the object's attributes become named tensors, so stock rules are
checkpointed and resumed like any other; a rule that keeps anything else stops with a message.
"""

import importlib
import inspect
import logging
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import Strategy
from pydantic import ConfigDict, TypeAdapter, ValidationError
from torch import Tensor

from fedsim.contracts import Cohort, Decision, Server, Tensors, Vector
from fedsim.errors import ConfigError, PluginError, RoundError
from fedsim.flower.cohort_grid import CohortGrid
from fedsim.flower.heap import frozen_heap
from fedsim.flower.identity import ensure_identity
from fedsim.flower.records import to_arrays, to_tensors
from fedsim.flower.stock_state import extract, restore, snapshot
from fedsim.params import Layout
from fedsim.rng import seeded_globals
from fedsim.toml import shown

# The platform draws cohorts and owns the round loop, so these keys of Flower's rules have no say.
PLATFORM_KEYS = {
    "fraction_train": "federation.clients_per_round",
    "min_train_nodes": "federation.clients_per_round",
    "min_available_nodes": "federation.clients",
    "fraction_evaluate": "evaluate.clients",
    "min_evaluate_nodes": "evaluate.clients",
    "arrayrecord_key": None,
    "configrecord_key": None,
    "weighted_by_key": None,
    "train_metrics_aggr_fn": None,
    "evaluate_metrics_aggr_fn": None,
}


@dataclass(frozen=True)
class StockStrategy:
    """A stock Flower strategy as a `fedsim.contracts.Strategy`.

    Attributes:
        target: `module:Class`.
        options: its constructor's arguments.
    """

    target: str
    options: Mapping[str, Any] = field(default_factory=dict)

    def init(self, model: Vector) -> Tensors:
        """No state before round 1; refuses a rule that needs more of its clients than their models.

        Raises:
            ConfigError: the rule would send its clients instructions, or another model.
        """
        layout = Layout((("model", tuple(model.shape), model.dtype),), ())
        with _without_chatter():
            _configured(self._made(), layout, model, round=1, clients=1)
        return {}

    def step(self, state: Tensors, cohort: Cohort, server: Server) -> tuple[Tensors, Decision]:
        """Let the rule configure the round and aggregate its replies.

        Raises:
            RoundError: it aggregates to nothing, to other tensors, to values that are not finite, or raises.
        """
        strategy = self._made()
        fresh = snapshot(strategy)
        restore(strategy, state)
        seed = int(torch.randint(2**62, (1,), generator=server.rng))
        model = server.model.detach().cpu()
        with seeded_globals(seed), frozen_heap(), _without_chatter():
            asked = _configured(strategy, cohort.layout, model, cohort.round, len(cohort.partitions))
            replies = _replies(asked, cohort, model)
            try:
                arrays, _ = strategy.aggregate_train(cohort.round, replies)
            except Exception as error:  # foreign code may raise anything
                raise RoundError(f"{self._name} raised {type(error).__name__}: {error}") from error
        update = self._update(arrays, cohort.layout, model)
        remembered = extract(strategy, fresh, ignored=PLATFORM_KEYS)
        return remembered, Decision(update=update.to(server.model.device))

    @property
    def _name(self) -> str:
        return self.target.rpartition(":")[2]

    def _made(self) -> Strategy:
        ensure_identity()
        module, _, name = self.target.partition(":")
        return cast(Strategy, getattr(importlib.import_module(module), name)(**self.options))

    def _update(self, arrays: ArrayRecord | None, layout: Layout, model: Vector) -> Vector:
        """New model minus old, [d] in float64, so that adding it gives exactly the strategy's arrays."""
        if not arrays:
            raise RoundError(f"{self._name} aggregated to nothing, so the round has no model.")
        tensors, wanted = to_tensors(arrays), _named(layout, model)
        shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
        if shapes != {name: tuple(tensor.shape) for name, tensor in wanted.items()}:
            raise RoundError(f"{self._name} returned tensors {shapes}, which are not the model's.")
        parts = [tensors[name].reshape(-1).to(model.dtype) for name in wanted]
        new = torch.cat(parts) if parts else model.clone()
        if not bool(torch.isfinite(new).all()):
            raise RoundError(f"{self._name} made a model that is not finite from replies that are.")
        return new.double() - model.double()


@contextmanager
def _without_chatter() -> Iterator[None]:
    """Flower logs each sampling and aggregation, of rounds that are ours to report; warnings stay."""
    logger = logging.getLogger("flwr")
    before = logger.level
    logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        logger.setLevel(before)


def adapt(target: Any, options: Mapping[str, Any], path: str) -> StockStrategy | None:
    """The adapter behind a dotted path; None where `target` is not a Flower strategy.

    Args:
        target: what the path names.
        options: the other keys of the table.
        path: its TOML path.

    Raises:
        PluginError: an abstract class, or a strategy of Flower's older API.
        ConfigError: a key that the rule lacks or that the platform decides, or a value that it refuses.
    """
    if not isinstance(target, type):
        return None
    if not issubclass(target, Strategy):
        if target.__module__.startswith(("flwr.server.strategy", "flwr.compat.server.strategy")):
            raise PluginError(
                f"{path}.kind: {target.__name__} is of Flower's older API; "
                f'use "flwr.serverapp.strategy:{target.__name__}".'
            )
        return None
    _check_options(target, options, path)
    stock = StockStrategy(f"{target.__module__}:{target.__qualname__}", dict(options))
    try:
        stock.init(torch.zeros(1))
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error
    except Exception as error:  # a constructor may refuse its values with any exception
        raise ConfigError(f"{path}: {target.__name__} refused its values: {error}") from error
    return stock


def _check_options(target: type, options: Mapping[str, Any], path: str) -> None:
    parameters = inspect.signature(target).parameters
    known = [name for name in parameters if name not in PLATFORM_KEYS]
    for key in options:
        if PLATFORM_KEYS.get(key):
            raise ConfigError(f"{path}.{key}: fedsim decides this by {PLATFORM_KEYS[key]}; leave it out.")
        if key in PLATFORM_KEYS:
            raise ConfigError(f"{path}.{key}: is set by the platform; leave it out.")
        if key not in known:
            raise ConfigError(
                f"unknown key '{path}.{key}' for kind {target.__name__}; known: {', '.join(known)}."
            )
        _check_value(parameters[key].annotation, options[key], f"{path}.{key}")
    for name in known:
        parameter = parameters[name]
        if parameter.default is parameter.empty and name not in options:
            raise ConfigError(f"{path}.{name}: missing; {target.__name__} needs it.")


def _check_value(annotation: Any, value: Any, path: str) -> None:
    """Hold a value against the type that the rule declares; Flower itself looks at few."""
    if isinstance(value, float) and not math.isfinite(value):
        raise ConfigError(f"{path}: wanted a finite number, found {value}.")
    if annotation is inspect.Parameter.empty:
        return
    settings = ConfigDict(strict=True, arbitrary_types_allowed=True)
    try:
        TypeAdapter(annotation, config=settings).validate_python(value)
    except ValidationError as error:
        raise ConfigError(f"{path}: {error.errors()[0]['msg']}, found {shown(value)}.") from error


def _named(layout: Layout, vector: Vector) -> dict[str, Tensor]:
    """The floating-point tensors, all in the type of the vector: NumPy has no bfloat16."""
    floats = tuple((name, shape, vector.dtype) for name, shape, _ in layout.floats)
    return Layout(floats, ()).unflatten(vector, {})


def _configured(strategy: Any, layout: Layout, model: Vector, round: int, clients: int) -> list[Message]:
    """The messages that the rule would send to exactly `clients` nodes, in the order of nodes."""
    for name, value in (
        ("fraction_train", 1.0),
        ("min_train_nodes", clients),
        ("min_available_nodes", clients),
    ):
        if hasattr(strategy, name):
            setattr(strategy, name, value)
    arrays = to_arrays(_named(layout, model))
    messages = strategy.configure_train(round, arrays, ConfigRecord(), CohortGrid(clients))
    asked = sorted(messages, key=lambda message: message.metadata.dst_node_id)
    if len(asked) != clients:
        raise RoundError(f"{type(strategy).__name__} asks {len(asked)} of the cohort's {clients} clients.")
    _refuse_instructions(type(strategy).__name__, asked[0].content, arrays)
    return asked


def _refuse_instructions(name: str, content: RecordDict, arrays: ArrayRecord) -> None:
    """What the rule tells its clients besides the model would be lost on fedsim's."""
    told = [key for record in content.config_records.values() for key in record if key != "server-round"]
    if told:
        raise ConfigError(
            f"{name} sends its clients {', '.join(told)}, which fedsim's clients do not read: choose a "
            "client method that does the same, with FedAvg as the strategy."
        )
    sent = list(content.array_records.values())
    if len(sent) != 1 or sent[0].object_id != arrays.object_id:
        raise ConfigError(f"{name} sends its clients something else than the model, which is not supported.")


def _replies(asked: list[Message], cohort: Cohort, model: Vector) -> list[Message]:
    """One reply per row, in partition order: the client's whole model, and its number of examples."""
    replies = []
    for message, update, examples in zip(asked, cohort.updates, cohort.examples.tolist(), strict=True):
        arrays = to_arrays(_named(cohort.layout, model + update.detach().cpu()))
        content = RecordDict({"arrays": arrays, "metrics": MetricRecord({"num-examples": int(examples)})})
        replies.append(Message(content, reply_to=message))
    return replies
