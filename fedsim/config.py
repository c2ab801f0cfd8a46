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
from typing import Any, Literal

from pydantic import Field, ValidationError, field_validator, model_validator

from fedsim.config_tables import (
    Attack,
    Checkpoint,
    Engine,
    Evaluate,
    Expectation,
    Failures,
    Federation,
    Plugin,
    Positive,
    Section,
)
from fedsim.errors import ConfigError
from fedsim.toml import apply_override, describe_error, read_toml

DEFAULT_KINDS: Mapping[tuple[str, ...], str | None] = {
    ("data",): "digits",
    ("federation", "partition"): "iid",
    ("model",): "mlp",
    ("client",): "supervised",
    ("strategy",): "fedavg",
    ("attack",): None,
}


class Experiment(Section):
    """A whole experiment file.

    Attributes:
        name: of the run's folder; else that of the file, or of its folder where it is called experiment.toml.
        seeds: one run each; `seed = 3` is short for `seeds = [3]`.
        rounds: of every run.
        data: the plugin that loads the data set.
        federation: who takes part, see the table.
        model: the plugin that builds the model.
        client: the plugin that says what clients train.
        strategy: the plugin that turns updates into the next model.
        attack: the plugin that plays the adversary; None: everybody is honest.
        engine: where clients are computed, see the table.
        evaluate: when models are measured, see the table.
        checkpoint: when the run is saved, see the table.
        failures: how many clients may fail, see the table.
        expect: by name of a metric, what its value has to be.
        track: further places that the metrics of every round go to.
    """

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
    expect: dict[str, Expectation] = Field(default_factory=dict)
    track: tuple[Literal["tensorboard", "mlflow"], ...] = ()

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

        The name, the list of seeds, expectations, checkpoints, the tolerance of failures, trackers, the place
        of the data and the choice of workers are left out.
        """
        left_out = {"name", "seeds", "expect", "checkpoint", "failures", "track"}
        told = self.model_dump(mode="json", exclude=left_out)
        told["data"].pop("mirror", None)
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
    if "sweep" in raw:
        raise ConfigError(f"{path}: has a table [sweep], so it is many experiments: fedsim sweep {path}")
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
