"""An experiment file's tables with a cell's changes in them."""

import copy
from collections.abc import Mapping
from typing import Any

from fedsim.config import DEFAULT_KINDS
from fedsim.plugins import GROUPS, available, options_of, resolve

_GROUP = {
    ("data",): "data",
    ("federation", "partition"): "partitions",
    ("model",): "models",
    ("client",): "clients",
    ("strategy",): "strategies",
    ("attack",): "attacks",
}


def changed(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """`base` with `changes`, neither of them touched.

    Tables are changed key by key. Where a plugin's `kind` becomes another, keys of the old kind that the new
    one does not have are left out.

    Raises:
        PluginError: a kind that resolves to nothing.
    """
    return _merged(copy.deepcopy(dict(base)), copy.deepcopy(dict(changes)), ())


def _merged(base: dict[str, Any], changes: Mapping[str, Any], path: tuple[str, ...]) -> dict[str, Any]:
    return base | {key: _joined(base.get(key), value, (*path, key)) for key, value in changes.items()}


def _joined(old: Any, new: Any, path: tuple[str, ...]) -> Any:
    if isinstance(new, str) and (isinstance(old, dict) or path in DEFAULT_KINDS):
        new = {"kind": new}
    if not isinstance(new, dict):
        return new
    if isinstance(old, str):
        old = {"kind": old}
    if not isinstance(old, dict):
        old = {}
    return _merged(_kept(old, new, path), new, path)


def _kept(old: dict[str, Any], new: Mapping[str, Any], path: tuple[str, ...]) -> dict[str, Any]:
    """What stays of a table that may become one of another kind."""
    before, after = old.get("kind", DEFAULT_KINDS.get(path)), new.get("kind")
    if not isinstance(before, str) or not isinstance(after, str) or before == after:
        return old
    group = _GROUP.get(path) or _common_group(before, after)
    known = {option.name for option in options_of(resolve(group, before, ".".join(path)))}
    wanted = {option.name for option in options_of(resolve(group, after, ".".join(path)))}
    return {key: value for key, value in old.items() if key not in known or key in wanted}


def _common_group(before: str, after: str) -> str:
    """The group of a nested table, such as a client's optimiser, by the names of its plugins."""
    named = [kind for kind in (before, after) if ":" not in kind]
    return next((group for group in GROUPS if all(kind in available(group) for kind in named)), GROUPS[0])
