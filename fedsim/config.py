"""The experiment file: TOML that becomes frozen, validated values before anything runs.

This module knows the frame of a file. The tables of plugins (`data`, `model`, `client`, `strategy`,
`attack`, `federation.partition`) keep their own keys as they are; `fedsim.plugins` checks those against
the plugin that `kind` names. Every message names the full TOML path.
"""

import copy
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from fedsim.errors import ConfigError
from fedsim.toml import apply_override, describe_error, read_toml

Positive = Annotated[int, Field(ge=1)]
Fraction = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
Statistic = Literal["last", "best", "validation_selected"]


class Section(BaseModel):
    """A table of the file whose keys are all known here."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Plugin(BaseModel):
    """A table whose `kind` names a plugin; the other keys belong to that plugin."""

    model_config = ConfigDict(extra="allow", frozen=True)

    kind: str

    @property
    def options(self) -> dict[str, Any]:
        """The plugin's own keys, unchecked."""
        return dict(self.model_extra or {})


DEFAULT_KINDS: Mapping[tuple[str, ...], str | None] = {
    ("data",): "digits",
    ("federation", "partition"): "iid",
    ("model",): "mlp",
    ("client",): "supervised",
    ("strategy",): "fedavg",
    ("attack",): None,
}


class Federation(Section):
    """Who takes part: partitions of the data, and how many of them are asked in a round.

    Attributes:
        clients: partitions, numbered from 0.
        clients_per_round: exactly so many in every round; all of them if not given.
        partition: the plugin that divides the data.
        split: fractions of each client's data for training, validation and test, which sum to 1; None: the
            task's own, see `fedsim.data.federate`.
    """

    clients: Positive = 10
    clients_per_round: Positive = Field(default_factory=lambda known: known.get("clients", 10))
    partition: Plugin = Plugin(kind="iid")
    split: tuple[Fraction, Fraction, Fraction] | None = None

    @field_validator("clients_per_round")
    @classmethod
    def _at_most_all(cls, value: int, info: ValidationInfo) -> int:
        clients = info.data.get("clients", value)
        if value > clients:
            raise ValueError(f"at most federation.clients = {clients}")
        return value

    @field_validator("split")
    @classmethod
    def _sums_to_one(cls, value: tuple[float, float, float] | None) -> tuple[float, float, float] | None:
        if value is not None and (abs(sum(value) - 1) > 1e-9 or value[0] <= 0):
            raise ValueError("three fractions that sum to 1, the first above 0")
        return value


class Attack(Plugin):
    """Who is malicious and when; the plugin's own keys lie beside these.

    Attributes:
        malicious: partitions, or how many of them (drawn by seed).
        participation: `forced` puts every malicious client in every cohort of the window; `random` draws
            them like all others.
        window: first and last round of the attack, counted from 1, inclusive; None: all rounds.
    """

    malicious: Annotated[int, Field(ge=0)] | tuple[int, ...] = 1
    participation: Literal["forced", "random"] = "random"
    window: tuple[Positive, Positive] | None = None


class Engine(Section):
    """Where and how clients are computed; only `tier`, `dtype`, `device` and `chunk` can touch the numbers.

    Attributes:
        backend: `in-process` (one worker: this process; more: spawned processes) or `ray`.
        workers: how many; None: one per usable core, 8 at most. Results do not depend on it.
        device: `auto` takes CUDA where there is one; else `cpu`, `cuda` or `cuda:N`.
        tier: `T0` sends Flower messages to a ClientApp, `T1` runs clients one after the other.
        chunk: clients per task; None: by a rule on declared sizes.
        address: of a running Ray cluster to join.
        gpus_per_worker: share of a card; `auto`: all cards divided evenly.
        deadline: seconds that a worker may take for its share of a round; None: no limit.
        dtype: of parameters and inputs.
        private_memory: GiB of private client tensors that the driver keeps in memory; the rest on disk.
    """

    backend: Literal["in-process", "ray"] = "in-process"
    workers: Positive | None = None
    device: Annotated[str, Field(pattern=r"^(auto|cpu|cuda(:\d+)?)$")] = "auto"
    tier: Literal["auto", "T0", "T1", "T2"] = "auto"
    chunk: Positive | None = None
    address: str | None = None
    gpus_per_worker: Annotated[float, Field(gt=0, le=1)] | Literal["auto"] = "auto"
    deadline: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    dtype: Literal["float32", "float64"] = "float32"
    private_memory: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 2.0

    @field_validator("tier")
    @classmethod
    def _exists(cls, value: str) -> str:
        if value == "T2":
            raise ValueError('"auto", "T0" or "T1": stacked clients (T2) are not available yet')
        return value

    @field_validator("address")
    @classmethod
    def _for_ray(cls, value: str | None, info: ValidationInfo) -> str | None:
        if value is not None and info.data.get("backend") != "ray":
            raise ValueError('no address unless engine.backend = "ray"')
        return value


class Evaluate(Section):
    """When models are measured; the last round always is.

    Attributes:
        every: rounds between measurements of the global model on the server's test set.
        clients: whose own models are measured on their own splits.
        clients_every: rounds between those.
    """

    every: Positive = 1
    clients: Literal["all", "sampled", "none"] = "all"
    clients_every: Positive = 5


class Checkpoint(Section):
    """Rounds between checkpoints; 0 writes none."""

    every: Annotated[int, Field(ge=0)] = 1


class Failures(Section):
    """The share of a cohort that may fail or be refused before the run fails; by default nobody may."""

    max_failed_fraction: Fraction = 0.0


class Expectation(Section):
    """Bounds on one metric; the run ends with exit code 3 where they are not met."""

    at_least: Finite | None = None
    at_most: Finite | None = None
    statistic: Statistic = "last"

    @model_validator(mode="after")
    def _some_bound(self) -> "Expectation":
        if self.at_least is None and self.at_most is None:
            raise ValueError("at_least or at_most")
        return self


class Experiment(Section):
    """A whole experiment file."""

    name: str = "experiment"
    seeds: tuple[int, ...] = (0,)
    rounds: Positive
    data: Plugin = Plugin(kind="digits")
    federation: Federation = Federation()
    model: Plugin = Plugin(kind="mlp")
    client: Plugin = Plugin(kind="supervised")
    strategy: Plugin = Plugin(kind="fedavg")
    attack: Attack | None = None
    engine: Engine = Engine()
    evaluate: Evaluate = Evaluate()
    checkpoint: Checkpoint = Checkpoint()
    failures: Failures = Failures()
    expect: dict[str, Expectation] = {}

    @field_validator("name")
    @classmethod
    def _is_a_folder_name(cls, value: str) -> str:
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", value):
            raise ValueError("letters, digits, '.', '_' and '-' only: it becomes a folder's name")
        return value

    @field_validator("seeds")
    @classmethod
    def _distinct(cls, value: tuple[int, ...]) -> tuple[int, ...]:
        if not value or len(set(value)) != len(value) or min(value) < 0:
            raise ValueError("a list of one or more different integers that are not negative")
        return value

    @model_validator(mode="after")
    def _attack_fits(self) -> "Experiment":
        if self.attack is not None:
            _check_attack(self.attack, self.federation, self.rounds)
        return self

    def digest(self) -> str:
        """SHA-256 of what can touch the numbers of one seed; a resumed run must have the same.

        The name, the list of seeds, expectations, checkpoints and the choice of workers are left out.
        """
        told = self.model_dump(mode="json", exclude={"name", "seeds", "expect", "checkpoint"})
        for key in ("backend", "workers", "address", "gpus_per_worker", "deadline", "private_memory"):
            del told["engine"][key]
        return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()


def _check_attack(attack: Attack, federation: Federation, rounds: int) -> None:
    """Window inside the rounds, malicious partitions inside the federation."""
    clients, places = federation.clients, federation.clients_per_round
    first, last = attack.window or (1, rounds)
    if not first <= last <= rounds:
        raise ConfigError(
            f"attack.window: found [{first}, {last}], wanted rounds from 1 to {rounds}, first to last"
        )
    chosen = attack.malicious
    if isinstance(chosen, int):
        if chosen > clients:
            raise ConfigError(
                f"attack.malicious: found {chosen}, wanted at most federation.clients = {clients}"
            )
    elif len(set(chosen)) != len(chosen) or any(not 0 <= member < clients for member in chosen):
        raise ConfigError(
            f"attack.malicious: found {list(chosen)}, wanted different partitions from 0 to {clients - 1}"
        )
    count = chosen if isinstance(chosen, int) else len(chosen)
    if attack.participation == "forced" and count > places:
        raise ConfigError(
            f'attack.participation: "forced" needs a place for each of {count} malicious clients, but '
            f"federation.clients_per_round is {places}"
        )


def _expand(raw: Mapping[str, Any]) -> dict[str, Any]:
    """A string is short for `{kind = string}`; a plugin's table without `kind` means the default kind."""
    whole = copy.deepcopy(dict(raw))
    for path, kind in DEFAULT_KINDS.items():
        table: Any = whole
        for key in path[:-1]:
            table = table.get(key) if isinstance(table, dict) else None
        if not isinstance(table, dict) or path[-1] not in table:
            continue
        value = table[path[-1]]
        if isinstance(value, str):
            table[path[-1]] = {"kind": value}
        elif isinstance(value, dict) and kind is not None:
            table[path[-1]] = {"kind": kind, **value}
    return whole


def parse(raw: Mapping[str, Any]) -> Experiment:
    """Validated values from a file's tables.

    Raises:
        ConfigError: an unknown key (with the nearest known one), a wrong type, a value out of range.
    """
    # JSON mode is pydantic's strict mode for files: 2 is a float, "yes" is not a bool, a list is a tuple.
    whole = _expand(raw)
    try:
        return Experiment.model_validate_json(json.dumps(whole, default=str), strict=True)
    except ValidationError as error:
        raise ConfigError(describe_error(error, whole, _keys_at)) from None


def load(path: Path, overrides: Sequence[str] = ()) -> Experiment:
    """The experiment in a file, changed by `key.path=value` overrides.

    Raises:
        ConfigError: the file is missing or no TOML, or its content is refused.
    """
    raw = read_toml(path)
    for text in overrides:
        apply_override(raw, text)
    if "seed" in raw:
        if "seeds" in raw:
            raise ConfigError(f"{path}: seed and seeds are both given; keep one.")
        raw["seeds"] = [raw.pop("seed")]
    stem = path.resolve().parent.name if path.stem == "experiment" else path.stem
    raw.setdefault("name", re.sub(r"[^A-Za-z0-9._-]+", "-", stem).strip("-._") or "experiment")
    try:
        return parse(raw)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


def _keys_at(path: Sequence[str | int]) -> Sequence[str]:
    """The known keys of the table at `path`."""
    section: Any = Experiment
    for part in path:
        field = getattr(section, "model_fields", {}).get(part)
        section = field.annotation if field is not None else section
        if getattr(section, "__origin__", None) is dict:
            section = Expectation
    return tuple(getattr(section, "model_fields", {}))
