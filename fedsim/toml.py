"""TOML files and overrides, and validation errors in words that name the TOML path."""

import difflib
import json
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from fedsim.errors import ConfigError

_TYPES = {
    "bool": "true or false",
    "int": "an integer",
    "float": "a number",
    "string": "a string",
    "tuple": "a list",
    "list": "a list",
    "dict": "a table",
    "model": "a table",
    "dataclass": "a table",
}


def read_toml(path: Path) -> dict[str, Any]:
    """The tables of a TOML file.

    Raises:
        ConfigError: no such file, or its text is not TOML (with line and column).
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}.") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: not TOML: {error}.") from None
    except RecursionError:
        raise ConfigError(f"{path}: lists or tables are nested too deeply.") from None


def apply_override(raw: dict[str, Any], text: str) -> None:
    """Set one `key.path=value` in `raw`, in place; a string on the way is short for `{kind = string}`.

    The value is read as TOML, and as a plain string where it is not TOML.

    Raises:
        ConfigError: no `=`, an empty key, or a path that leads through a value that is no table.
    """
    path, equals, value = text.partition("=")
    keys = [key.strip() for key in path.split(".")]
    if not equals or not all(keys):
        raise ConfigError(f"--set {text}: wanted key.path=value, such as rounds=5 or strategy.kind=fedavg.")
    table = raw
    for depth, key in enumerate(keys[:-1], start=1):
        inner = table.setdefault(key, {})
        if isinstance(inner, str):
            inner = {"kind": inner}
        if not isinstance(inner, dict):
            raise ConfigError(f"--set {text}: {'.'.join(keys[:depth])} is {shown(inner)}, not a table.")
        table[key] = inner
        table = inner
    other = {"seed": "seeds", "seeds": "seed"}.get(path.strip())
    if other is not None:
        raw.pop(other, None)
    table[keys[-1]] = _value(value.strip())


def _value(text: str) -> Any:
    try:
        table = tomllib.loads(f"value = {text}")
    except (tomllib.TOMLDecodeError, RecursionError):
        return text
    return table["value"] if len(table) == 1 else text


def nearest(word: str, known: Sequence[str]) -> str:
    """`; did you mean 'x'?`, or the known words where none is near."""
    near = difflib.get_close_matches(word, known, n=1, cutoff=0.6)
    if near:
        return f"; did you mean {near[0]!r}?"
    return f"; known: {', '.join(known)}." if known else "."


def dotted(path: Sequence[str | int]) -> str:
    """`attack.malicious[2]`."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return text.removeprefix(".")


def shown(value: Any) -> str:
    """A TOML value as a person would write it, shortened."""
    text = json.dumps(value, default=str)
    return text if len(text) <= 60 else text[:57] + "..."


def describe_error(
    error: ValidationError,
    raw: Any,
    keys_at: Callable[[Sequence[str | int]], Sequence[str]],
    prefix: str = "",
) -> str:
    """One line for the first of pydantic's complaints; misspelt keys come before all others.

    Args:
        error: what pydantic refused.
        raw: the value it was given.
        keys_at: the known keys of the table at a path, for the nearest spelling.
        prefix: TOML path of `raw` itself.
    """
    entries = error.errors(include_url=False, include_context=True)
    entries.sort(key=lambda entry: entry["type"] != "extra_forbidden")
    first = entries[0]
    inner, found = _located(first["loc"], raw)
    path = dotted((prefix, *inner) if prefix else inner)
    if first["type"] == "extra_forbidden":
        key, table = str(first["loc"][-1]), path.rpartition(".")[0]
        where = f" in [{table}]" if table else ""
        return f"unknown key {path!r}{where}{nearest(key, keys_at(first['loc'][:-1]))}"
    if first["type"] == "missing":
        return f"{dotted(((prefix,) if prefix else ()) + tuple(first['loc']))}: missing."
    return f"{path}: found {shown(found)}, wanted {_wanted(entries, inner, raw)}."


def _located(loc: Sequence[str | int], raw: Any) -> tuple[tuple[str | int, ...], Any]:
    """The part of `loc` that lies in the file (pydantic adds union members), and the value there."""
    path: list[str | int] = []
    for part in loc:
        if isinstance(raw, Mapping) and part in raw:
            raw = raw[str(part)]
        elif isinstance(raw, list) and isinstance(part, int) and part < len(raw):
            raw = raw[part]
        else:
            break
        path.append(part)
    return tuple(path), raw


def _wanted(entries: Sequence[Any], place: Sequence[str | int], raw: Any) -> str:
    """What would have been accepted at `place`; all members of a union where it is one."""
    same = [entry for entry in entries if list(_located(entry["loc"], raw)[0]) == list(place)]
    return " or ".join(dict.fromkeys(_phrase(entry) for entry in same))


def _phrase(entry: Mapping[str, Any]) -> str:
    kind = str(entry["type"])
    limit = entry.get("ctx", {})
    if kind == "too_long":
        return f"at most {limit['max_length']} items"
    if kind == "too_short":
        return f"at least {limit['min_length']} items"
    if kind.startswith(("greater_than", "less_than")):
        return f"a number {entry['msg'].removeprefix('Input should be ')}"
    if kind.endswith("_type") and kind.removesuffix("_type") in _TYPES:
        return _TYPES[kind.removesuffix("_type")]
    if kind == "string_pattern_mismatch":
        return f"text of the form {limit['pattern']}"
    message = str(entry["msg"]).removeprefix("Value error, ")
    return message.removeprefix("Input should be ").rstrip(".")
