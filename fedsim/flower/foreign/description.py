"""What a foreign app's `pyproject.toml` says, by Flower's own rules."""

import difflib
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from flwr.app.user_config import UserConfig
from flwr.common.config import flatten_dict, fuse_dicts, get_project_config, parse_config_args

from fedsim.errors import ConfigError

DEFAULT_CLIENTS = 10


@dataclass(frozen=True, kw_only=True)
class AppDescription:
    """A Flower app that lies in a directory.

    Attributes:
        directory: absolute.
        name: of the project.
        version: of the project.
        publisher: of the app.
        server: `module:attribute` of the ServerApp.
        client: `module:attribute` of the ClientApp.
        run_config: `[tool.flwr.app.config]`, nested keys joined by dots, with overrides.
        overrides: what was overridden.
        clients: SuperNodes that the app's default federation has, or None.
        dependencies: what the project says it needs.
    """

    directory: Path
    name: str
    version: str
    publisher: str
    server: str
    client: str
    run_config: UserConfig
    overrides: UserConfig
    clients: int | None
    dependencies: tuple[str, ...]


def describe(path: Path, overrides: Sequence[str] = ()) -> AppDescription:
    """Read an app's directory.

    Args:
        path: of the directory that holds `pyproject.toml`.
        overrides: as `flwr run --run-config` takes them: "key=value key2='text'", or one TOML file.

    Raises:
        ConfigError: there is no such app, or an override has no place in its configuration.
    """
    directory = path.expanduser().resolve()
    project = _project(directory)
    app = project["tool"]["flwr"]["app"]
    given = _overrides(overrides)
    return AppDescription(
        directory=directory,
        name=str(project["project"]["name"]),
        version=str(project["project"]["version"]),
        publisher=str(app["publisher"]),
        server=_reference(app["components"], "serverapp"),
        client=_reference(app["components"], "clientapp"),
        run_config=_fused(flatten_dict(app.get("config", {})), given),
        overrides=given,
        clients=_declared_clients(project["tool"]["flwr"]),
        dependencies=tuple(map(str, project["project"].get("dependencies", []))),
    )


def _project(directory: Path) -> dict[str, Any]:
    if not directory.is_dir():
        raise ConfigError(
            f"There is no directory {directory}: name the folder that holds the app's pyproject.toml."
        )
    if not (directory / "pyproject.toml").is_file():
        raise ConfigError(f"{directory} holds no pyproject.toml: it is not a Flower app.")
    try:
        return get_project_config(directory)
    except (ValueError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        words = "; ".join(line.strip(" -") for line in str(error).splitlines() if line.strip())
        raise ConfigError(f"{directory / 'pyproject.toml'} is not a Flower app's: {words}") from error


def _reference(components: dict[str, Any], kind: str) -> str:
    reference = components.get(kind)
    if not isinstance(reference, str):
        raise ConfigError(
            f"tool.flwr.app.components.{kind} should be 'module:attribute', found {reference!r}."
        )
    module, _, attribute = reference.partition(":")
    if not module or not attribute:
        raise ConfigError(
            f"tool.flwr.app.components.{kind} should be 'module:attribute', found {reference!r}."
        )
    return reference


def _overrides(overrides: Sequence[str]) -> UserConfig:
    for text in overrides:
        if "=" not in text and not text.endswith(".toml"):
            raise ConfigError(f"--run-config takes 'key=value key2=value2', found {text!r}.")
    # Flower's own merge of several texts loses `a.x` where a later one sets `a.y`: one text at a time
    files = any(text.endswith(".toml") for text in overrides)
    texts = [list(overrides)] if files else [[text] for text in overrides]
    try:
        read = {key: value for text in texts for key, value in parse_config_args(text).items()}
    except (click.ClickException, ValueError, OSError) as error:
        text = error.message if isinstance(error, click.ClickException) else str(error)
        raise ConfigError(f"--run-config {' '.join(overrides)!r} cannot be read: {text}") from error
    if overrides and not read:
        raise ConfigError(f"--run-config {' '.join(overrides)!r} holds no 'key=value'.")
    return read


def _fused(config: UserConfig, overrides: UserConfig) -> UserConfig:
    for key in overrides:
        if key not in config:
            near = difflib.get_close_matches(key, config, n=1)
            known = (
                f"did you mean {near[0]!r}?" if near else f"it has {', '.join(sorted(config)) or 'no keys'}."
            )
            raise ConfigError(
                f"--run-config {key}: the app's [tool.flwr.app.config] has no such key; {known}"
            )
    return fuse_dicts(config, overrides)


def _declared_clients(flwr: dict[str, Any]) -> int | None:
    """`options.num-supernodes` of the default federation, as apps declared it before Flower 1.32."""
    federations = flwr.get("federations", {})
    tables = {name: table for name, table in federations.items() if isinstance(table, dict)}
    chosen = tables.get(str(federations.get("default")), next(iter(tables.values()), {}))
    count = chosen.get("options", {}).get("num-supernodes")
    if count is None:
        return None
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise ConfigError(f"The app's options.num-supernodes should be a number from 1, found {count!r}.")
    return count
