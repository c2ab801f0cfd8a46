"""`fedsim list`: every installed plugin, its keys, their types and defaults."""

from typing import Any

from rich.console import Console
from rich.markup import escape

from fedsim.errors import ConfigError
from fedsim.plugins import GROUPS, Option, available, options_of, resolve

_TABLES = {
    "strategies": "strategy",
    "before": "strategy.before[]",
    "after": "strategy.after[]",
    "clients": "client",
    "attacks": "attack",
    "data": "data",
    "partitions": "federation.partition",
    "models": "model",
    "optimizers": "client.optimizer",
    "schedules": "client.schedule",
}


def print_plugins(console: Console | None = None) -> None:
    """All groups; a plugin that cannot be imported is listed with the reason."""
    console = console or Console(soft_wrap=True, highlight=False)
    for group in GROUPS:
        console.print(f"[bold]{group}[/bold]  ({_TABLES[group]}.kind)")
        if not available(group):
            console.print("  none installed")
        for name in available(group):
            _print_plugin(console, group, name)
        console.print()


def _print_plugin(console: Console, group: str, name: str) -> None:
    try:
        found = resolve(group, name, _TABLES[group])
    except ConfigError as error:
        console.print(f"  [bold]{name}[/bold]  cannot be loaded: {escape(str(error))}")
        return
    console.print(f"  [bold]{name}[/bold]  {escape(_first_line(found))}")
    for option in options_of(found):
        if option.name != "model":
            console.print(f"      {escape(_described(option))}")


def _first_line(found: Any) -> str:
    return next(iter((found.__doc__ or "").strip().splitlines()), "")


def _described(option: Option) -> str:
    if option.default is ...:
        return f"{option.name}: {option.type}, required"
    return f"{option.name}: {option.type} = {option.default!r}"
