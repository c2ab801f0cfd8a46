"""From a table of the experiment file to an object that satisfies its protocol.

`kind` is an entry point's name (`fedavg`) or a dotted path (`my_rule:MyRule`, looked up beside the
experiment file and in the current directory too). A plugin is a frozen dataclass; the table's other keys
are its fields, checked against their annotations. A field annotated with one of the protocols is itself
such a table. What the platform knows better than the file (`model`, `rounds`) is injected by field name.

An entry point of group `fedsim.adapters`, named like a group (`strategies`), may turn a class of another
library into a plugin: it is called as `adapter(target, options, path)` and returns the object, or None
where the class is none of its own.
"""

import dataclasses
import importlib
import json
import os
import sys
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

from pydantic import PydanticSchemaGenerationError, TypeAdapter, ValidationError

from fedsim.errors import ConfigError, PluginError, attributed
from fedsim.kept_process import kept_process
from fedsim.toml import describe_error, nearest, shown

GROUPS = (
    "strategies",
    "before",
    "after",
    "clients",
    "attacks",
    "data",
    "partitions",
    "models",
    "optimizers",
    "schedules",
)

# A protocol's name, as fields are annotated with it, and the group whose plugins satisfy it.
_PROTOCOLS = {
    "Strategy": "strategies",
    "Before": "before",
    "After": "after",
    "ClientMethod": "clients",
    "Attack": "attacks",
    "Source": "data",
    "Partition": "partitions",
    "ModelBuilder": "models",
    "Optimizer": "optimizers",
    "Schedule": "schedules",
}

# What an object of a group must offer; a missing one is named before round 1.
_REQUIRED = {
    "strategies": ("init", "step"),
    "clients": ("init", "program", "finish"),
    "attacks": ("knows", "init", "observe", "corrupt", "craft", "poison"),
    "before": ("mix",),
    "after": ("refine",),
    "models": ("build",),
    "optimizers": ("init", "step", "learning_rate"),
}


@dataclass(frozen=True)
class Option:
    """One key of a plugin's table: its type in words, and its default (`...`: must be given)."""

    name: str
    type: str
    default: Any


def search_in(*folders: Path) -> None:
    """Let dotted paths be found in these folders too, in this process and in workers it starts."""
    wanted = [str(folder.resolve()) for folder in folders]
    sys.path.extend(folder for folder in dict.fromkeys(wanted) if folder not in sys.path)
    known = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys([*filter(None, known), *wanted]))


@cache
def available(group: str) -> Mapping[str, EntryPoint]:
    """The installed plugins of a group by name, sorted."""
    found = entry_points(group=f"fedsim.{group}")
    return {entry.name: entry for entry in sorted(found, key=lambda entry: entry.name)}


def resolve(group: str, kind: str, path: str) -> Any:
    """The class behind a name or dotted path.

    Args:
        group: one of GROUPS.
        kind: `krum` or `package.module:Name`.
        path: TOML path of the table, for messages.

    Raises:
        PluginError: no such plugin (with the nearest name), or its module cannot be imported.
    """
    if ":" in kind:
        return _import(kind, path)
    known = available(group)
    if kind not in known:
        hint = nearest(kind, tuple(known)) if known else "; none is installed."
        raise PluginError(
            f"{path}.kind: no {group} plugin is called {kind!r}{hint}"
            + ("" if group == "data" else " A class of your own is named by 'module:Class'.")
        )
    return _import(known[kind].value, path)


def _import(target: str, path: str) -> Any:
    module_name, _, attributes = target.partition(":")
    try:
        with kept_process():
            found: Any = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:  # a plugin's module may raise anything
        raise PluginError(
            f"{path}.kind: {target!r}: importing {module_name!r} raised {type(error).__name__}: {error}"
        ) from error
    for attribute in attributes.split("."):
        try:
            found = getattr(found, attribute)
        except AttributeError:
            public = [name for name in vars(found) if not name.startswith("_")]
            hint = nearest(attribute, public) if nearest(attribute, public).startswith("; did") else "."
            raise PluginError(f"{path}.kind: {module_name!r} has no {attribute!r}{hint}") from None
    return found


def build(group: str, table: Mapping[str, Any], path: str, **injected: Any) -> Any:
    """The object that a plugin's table describes.

    Args:
        group: one of GROUPS.
        table: `kind` and the plugin's own keys.
        path: TOML path of the table.
        injected: values for fields of these names, here and in nested tables.

    Raises:
        PluginError: the name resolves to nothing, or to an object that breaks its protocol.
        ConfigError: an unknown, missing or ill-typed key.
    """
    options = dict(table)
    kind = options.pop("kind", None)
    if not isinstance(kind, str):
        known = ", ".join(available(group))
        found = "missing" if "kind" not in table else f"found {shown(kind)}"
        raise ConfigError(f"{path}.kind: {found}, wanted a plugin's name ({known}).")
    target = resolve(group, kind, path)
    if not (isinstance(target, type) and dataclasses.is_dataclass(target)):
        built = _adapt(group, target, options, path)
    else:
        built = _construct(target, options, path, injected)
    missing = [name for name in _REQUIRED.get(group, ()) if not hasattr(built, name)]
    if missing:
        raise PluginError(
            f"{path}.kind: {kind!r} lacks {', '.join(missing)}, which every {group} plugin has."
        )
    return built


def _adapt(group: str, target: Any, options: dict[str, Any], path: str) -> Any:
    """Ask the installed adapters to turn a foreign class into a plugin."""
    for entry in entry_points(group="fedsim.adapters"):
        if entry.name == group:
            built = entry.load()(target, options, path)
            if built is not None:
                return built
    raise PluginError(
        f"{path}.kind: {getattr(target, '__qualname__', target)!r} is not a dataclass of the {group} kind, "
        "and no adapter takes it."
    )


def _construct(cls: type, options: Mapping[str, Any], path: str, injected: Mapping[str, Any]) -> Any:
    """Check every key of `options` against the fields of `cls`, fill in `injected`, and make the object."""
    hints = typing.get_type_hints(cls)
    fields = {field.name: field for field in dataclasses.fields(cls) if field.init}
    given = {name: value for name, value in injected.items() if name in fields}
    # A plain number such as `rounds` may be overridden in the file; an object such as `model` may not.
    fixed = [name for name, value in given.items() if not isinstance(value, int | float | str)]
    settable = [name for name in fields if name not in fixed]
    for key in options:
        if key in fixed:
            raise ConfigError(f"{path}.{key}: is set by the platform from the table [{key}]; leave it out.")
        if key not in settable:
            raise ConfigError(f"unknown key '{path}.{key}' for kind {cls.__name__}{nearest(key, settable)}")
    for name in settable:
        field = fields[name]
        if name in options:
            given[name] = _value(options[name], hints[name], f"{path}.{name}", injected)
        elif name not in given and field.default is MISSING and field.default_factory is MISSING:
            raise ConfigError(f"{path}.{name}: missing; {cls.__name__} needs it ({type_words(hints[name])}).")
    with attributed(f"{path}.kind: {cls.__name__}", PluginError):
        try:
            return cls(**given)
        except ConfigError as error:
            raise type(error)(f"{path}.{error}") from None
        except (ValueError, TypeError) as error:
            raise ConfigError(f"{path}: {cls.__name__} refused its values: {error}") from error


def _value(value: Any, hint: Any, path: str, injected: Mapping[str, Any]) -> Any:
    """One value of a table, checked against its annotation."""
    group = _group_of(hint)
    if group is not None and value is not None:
        table = {"kind": value} if isinstance(value, str) else _as_table(value, path)
        return build(group, table, path, **injected)
    if dataclasses.is_dataclass(hint) and isinstance(hint, type) and isinstance(value, Mapping):
        return _construct(hint, value, path, injected)
    if typing.get_origin(hint) is tuple and isinstance(value, Sequence) and not isinstance(value, str):
        inner = typing.get_args(hint)
        if len(inner) == 2 and inner[1] is Ellipsis and _group_of(inner[0]) is not None:
            return tuple(
                _value(item, inner[0], f"{path}[{place}]", injected) for place, item in enumerate(value)
            )
    try:
        return TypeAdapter(hint).validate_json(json.dumps(value, default=str), strict=True)
    except ValidationError as error:
        raise ConfigError(describe_error(error, value, lambda _: (), path)) from None
    except PydanticSchemaGenerationError:
        raise PluginError(f"{path}: its type {type_words(hint)} cannot be written in a file.") from None


def _as_table(value: Any, path: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ConfigError(f"{path}: found {shown(value)}, wanted a plugin's name or a table with a kind.")
    return value


def _group_of(hint: Any) -> str | None:
    """The group of a field annotated with a protocol, or with one `| None`."""
    members = typing.get_args(hint) if isinstance(hint, types.UnionType) or _is_union(hint) else (hint,)
    for member in members:
        if getattr(member, "_is_protocol", False) and member.__name__ in _PROTOCOLS:
            return _PROTOCOLS[member.__name__]
    return None


def _is_union(hint: Any) -> bool:
    return typing.get_origin(hint) is typing.Union


def type_words(hint: Any) -> str:
    """`int`, `float | None`, `'auto' | 'full'`, `tuple[int, ...]`, `Optimizer`."""
    inner = typing.get_args(hint)
    if typing.get_origin(hint) is typing.Annotated:  # with bounds, which a message of its own tells
        return type_words(inner[0])
    if isinstance(hint, types.UnionType) or _is_union(hint):
        return " | ".join(type_words(member) for member in inner)
    if typing.get_origin(hint) is typing.Literal:
        return " | ".join(repr(member) for member in inner)
    if hint is type(None) or hint is Ellipsis:
        return "None" if hint is not Ellipsis else "..."
    name = getattr(hint, "__name__", str(hint))
    return f"{name}[{', '.join(type_words(member) for member in inner)}]" if inner else name


def options_of(cls: Any) -> tuple[Option, ...]:
    """The keys that a plugin's table may have, in the order of its fields."""
    if not dataclasses.is_dataclass(cls):
        return ()
    hints = typing.get_type_hints(cls)
    return tuple(
        Option(field.name, type_words(hints[field.name]), _default(field))
        for field in dataclasses.fields(cls)
        if field.init
    )


def _default(field: "dataclasses.Field[Any]") -> Any:
    if field.default is not MISSING:
        return field.default
    return field.default_factory() if field.default_factory is not MISSING else ...


def describe(built: Any) -> Any:
    """A built plugin as JSON values, defaults included, for the manifest."""
    if dataclasses.is_dataclass(built) and not isinstance(built, type):
        told = {field.name: describe(getattr(built, field.name)) for field in dataclasses.fields(built)}
        return {"class": f"{type(built).__module__}:{type(built).__qualname__}", **told}
    if isinstance(built, Mapping):
        return {str(key): describe(value) for key, value in built.items()}
    if isinstance(built, list | tuple):
        return [describe(value) for value in built]
    if isinstance(built, str | int | float | bool) or built is None:
        return built
    if type(built).__name__ == "dtype":  # torch's and NumPy's
        return str(built)
    return f"{type(built).__module__}:{type(built).__qualname__}"
