"""`fedsim list`: the tables of an experiment file with their keys, types, defaults and meanings.

First the platform's own tables, then every installed plugin by group.
"""

from typing import Any

from pydantic.fields import FieldInfo
from rich.console import Console
from rich.markup import escape

from fedsim.config import Experiment
from fedsim.config_tables import Attack, Checkpoint, Engine, Evaluate, Expectation, Failures, Federation
from fedsim.errors import ConfigError
from fedsim.plugins import GROUPS, Option, available, options_of, resolve, type_words
from fedsim.report.meanings import first_line, meanings

_GROUP_TABLES = {
    "strategies": "strategy",
    "clients": "client",
    "attacks": "attack",
    "data": "data",
    "partitions": "federation.partition",
    "models": "model",
    "optimizers": "client.optimizer",
    "schedules": "client.schedule",
    "before": "strategy.before[]",
    "after": "strategy.after[]",
}
_PLATFORM_TABLES = {
    "": Experiment,
    "federation": Federation,
    "engine": Engine,
    "evaluate": Evaluate,
    "attack": Attack,
    "checkpoint": Checkpoint,
    "failures": Failures,
    "expect.METRIC": Expectation,
}
_INJECTED = "model"  # a plugin's field that the platform fills in
_UNTOLD = object()


def print_plugins(console: Console | None = None) -> None:
    """Tables, then groups; a plugin that cannot be imported is listed with the reason."""
    console = console or Console(soft_wrap=True, highlight=False)
    for path, table in _PLATFORM_TABLES.items():
        _print_table(console, path, table)
    for group in GROUPS:
        console.print(f"[bold]{group}[/bold]  ({_GROUP_TABLES[group]}.kind)")
        if not available(group):
            console.print("  none installed")
        for name in available(group):
            _print_plugin(console, group, name)
        console.print()


def _print_table(console: Console, path: str, table: Any) -> None:
    heading = escape(f"[{path}]") if path else "the file itself"
    console.print(f"[bold]{heading}[/bold]  {escape(first_line(table))}")
    known = meanings(table)
    for name, field in table.model_fields.items():
        if name in _PLATFORM_TABLES and not path:
            continue  # a table of its own, below
        console.print(f"    {escape(_line(_option(name, field), known))}")
    console.print()


def _option(name: str, field: FieldInfo) -> Option:
    """A key of a platform's table; a default that depends on other keys is not told."""
    default = ... if field.is_required() else field.default
    if field.default_factory is not None:
        default = _UNTOLD
    kind = getattr(default, "kind", None)  # a plugin's table, which a string stands for
    return Option(name, type_words(field.annotation), default if kind is None else kind)


def _print_plugin(console: Console, group: str, name: str) -> None:
    try:
        found = resolve(group, name, _GROUP_TABLES[group])
    except ConfigError as error:
        console.print(f"  [bold]{name}[/bold]  cannot be loaded: {escape(str(error))}")
        return
    console.print(f"  [bold]{name}[/bold]  {escape(first_line(found))}")
    known = meanings(found) if isinstance(found, type) else {}
    for option in options_of(found):
        if option.name != _INJECTED:
            console.print(f"      {escape(_line(option, known))}")


def _line(option: Option, known: dict[str, str]) -> str:
    default = f" = {option.default!r}"
    if option.default is ...:
        default = ", required"
    elif option.default is _UNTOLD:
        default = ""
    meaning = f"  # {known[option.name]}" if option.name in known else ""
    return f"{option.name}: {option.type}{default}{meaning}"
