"""The axes of a sweep: names, labelled values, and the changes to the file that each stands for."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedsim.config import Experiment
from fedsim.errors import ConfigError
from fedsim.toml import nearest, shown

Changes = Mapping[str, Any]

FIXED = ("name", "seed", "seeds", "sweep")
"""Keys that no axis can set: every cell is played with all seeds, under one name."""

KEYS = tuple(name for name in Experiment.model_fields if name not in FIXED)


@dataclass(frozen=True)
class Axis:
    """One dimension of a sweep.

    Attributes:
        name: a key of the experiment file, or a name of its own.
        values: the changes behind each label, as tables from the file's root.
    """

    name: str
    values: Mapping[str, Changes]


def read_axes(table: Mapping[str, Any], base: Mapping[str, Any]) -> tuple[Axis, ...]:
    """The axes of a `[sweep]` table without its `report`.

    Args:
        table: as read.
        base: the rest of the file, for messages.

    Raises:
        ConfigError: no axis, an axis without values, one that is no key, or two that set the same key.
    """
    axes = tuple(_axis(name, value, base) for name, value in table.items())
    if not axes:
        raise ConfigError('sweep: no axis; give keys and values, such as "strategy.kind" = ["fedavg"].')
    for number, one in enumerate(axes):
        for other in axes[number + 1 :]:
            _refuse_overlap(one, other)
    return axes


def _axis(name: str, value: Any, base: Mapping[str, Any]) -> Axis:
    keys = name.split(".")
    if keys[0] in FIXED:
        raise ConfigError(
            f"sweep.{name}: cannot be an axis; every cell is played with all seeds of the file."
        )
    is_key = keys[0] in KEYS
    if not isinstance(value, list | dict) or not value:
        raise ConfigError(f"sweep.{name}: found {shown(value)}, wanted a list of values or a table of them.")
    if isinstance(value, list):
        if not is_key:
            raise ConfigError(
                f"sweep.{name}: no key of an experiment file{nearest(keys[0], KEYS)} An axis with a name of "
                "its own has tables of changes: { label = { key = value } }."
            )
        return Axis(name, {label: _nested(keys, one) for label, one in _labelled(name, value)})
    if is_key:
        _refuse_unquoted(name, value, base)
        return Axis(name, {label: _nested(keys, one) for label, one in value.items()})
    return Axis(name, {label: _changes(f"sweep.{name}.{label}", name, one) for label, one in value.items()})


def _labelled(name: str, values: Sequence[Any]) -> list[tuple[str, Any]]:
    kinds = [value.get("kind") if isinstance(value, Mapping) else value for value in values]
    short = len({json.dumps(kind, default=str) for kind in kinds}) == len(kinds) and None not in kinds
    labels = [_label(kind if short else value) for kind, value in zip(kinds, values, strict=True)]
    if len(set(labels)) != len(labels):
        raise ConfigError(f"sweep.{name}: has the value {shown(_repeated(labels))} twice.")
    return list(zip(labels, values, strict=True))


def _label(value: Any) -> str:
    if isinstance(value, Mapping):
        rest = [f"{key}={_label(inner)}" for key, inner in value.items() if key != "kind"]
        return " ".join([str(value["kind"]), *rest] if "kind" in value else rest)
    return value if isinstance(value, str) else json.dumps(value, default=str)


def _repeated(labels: Sequence[str]) -> str:
    return next(label for label in labels if labels.count(label) > 1)


def _nested(keys: Sequence[str], value: Any) -> dict[str, Any]:
    for key in reversed(keys):
        value = {key: value}
    found: dict[str, Any] = value
    return found


def _changes(path: str, axis: str, value: Any) -> Changes:
    """A table of changes from the file's root, whose keys may be dotted."""
    if not isinstance(value, Mapping):
        raise ConfigError(
            f"{path}: found {shown(value)}, wanted a table of changes, since {axis!r} is no key of an "
            f"experiment file{nearest(axis.partition('.')[0], KEYS)}"
        )
    found: dict[str, Any] = {}
    for key, inner in value.items():
        first = key.partition(".")[0]
        if first not in KEYS:
            reason = (
                "cannot be changed by an axis." if first in FIXED else f"unknown key{nearest(first, KEYS)}"
            )
            hint = "" if first in FIXED else f" ({axis!r} is no key either, so its values start at the root.)"
            raise ConfigError(f"{path}.{key}: {reason}{hint}")
        found = union(found, _nested(key.split("."), inner))
    return found


def _refuse_unquoted(name: str, value: Mapping[str, Any], base: Mapping[str, Any]) -> None:
    """`client.epochs = [1, 2]` without quotes is to TOML an axis `client` with one value named `epochs`."""
    label, inner = next(iter(value.items()))
    table = base.get(name)
    section = getattr(Experiment.model_fields[name].annotation if name in KEYS else None, "model_fields", {})
    known = label in section or (isinstance(table, Mapping) and label in table)
    if len(value) == 1 and known and isinstance(inner, list | Mapping):
        raise ConfigError(f'sweep.{name}.{label}: a deep key needs quotes: "{name}.{label}" = [...].')


def union(one: Changes, other: Changes) -> dict[str, Any]:
    """Two tables of changes as one; a string beside a table is that table's kind."""
    found = dict(one)
    for key, value in other.items():
        old = found.get(key)
        if isinstance(old, Mapping) and isinstance(value, str):
            value = {"kind": value}
        if isinstance(old, str) and isinstance(value, Mapping):
            old = {"kind": old}
        both = isinstance(old, Mapping) and isinstance(value, Mapping)
        found[key] = union(old, value) if both else value  # type: ignore[arg-type]
    return found


def _leaves(changes: Changes, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    for key, value in changes.items():
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, (*path, key))
        else:
            yield (*path, key), value


def _refuse_overlap(one: Axis, other: Axis) -> None:
    ours = {path: value for changes in one.values.values() for path, value in _leaves(changes)}
    theirs = {path: value for changes in other.values.values() for path, value in _leaves(changes)}
    for path, value in ours.items():
        for place, found in theirs.items():
            if _same(path, value, place) or _same(place, found, path):
                key = ".".join(path if len(path) > len(place) else place)
                raise ConfigError(
                    f"sweep.{one.name} and sweep.{other.name} both set {key!r}; one axis has to."
                )


def _same(path: tuple[str, ...], value: Any, other: tuple[str, ...]) -> bool:
    """Does setting `path` touch `other`? A string may be a kind, beside which further keys are set."""
    if isinstance(value, str) and len(other) > len(path):
        path = (*path, "kind")
    return other[: len(path)] == path
