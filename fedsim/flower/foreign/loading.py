"""Imports the components of a foreign app; every way to fail is one line."""

import re
import traceback
from pathlib import Path
from typing import Any, TypeVar

from fedsim.errors import ConfigError
from fedsim.flower.foreign.description import AppDescription
from fedsim.flower.foreign.modules import AppModules
from fedsim.kept_process import kept_process

Component = TypeVar("Component")


def load_component(
    modules: AppModules, app: AppDescription, kind: str, reference: str, expected: type[Component]
) -> Component:
    """The object that a component names; call it inside the modules' scope.

    Raises:
        ConfigError: it cannot be imported, or is not what it should be.
    """
    try:
        with kept_process():
            found: Any = modules.load(reference)
    except ModuleNotFoundError as error:
        raise ConfigError(_missing(modules, app, kind, reference, error)) from error
    except (Exception, SystemExit) as error:  # the boundary: foreign code
        line = "".join(traceback.format_exception_only(error)).strip().splitlines()[-1]
        where = _place(error, app.directory)
        raise ConfigError(f"The app's {kind} {reference!r} cannot be imported: {line}{where}") from error
    if not isinstance(found, expected):
        raise ConfigError(
            f"The app's {kind} {reference!r} should be a {expected.__name__}, found {type(found).__name__}."
        )
    return found


def _missing(
    modules: AppModules, app: AppDescription, kind: str, reference: str, error: ModuleNotFoundError
) -> str:
    name, start = error.name or str(error), f"The app's {kind} {reference!r}"
    if name == reference.partition(":")[0] or modules.has(name):
        return f"{start} cannot be imported: there is no module {name!r} in {app.directory}."
    root = name.partition(".")[0]
    wanted = [need for need in app.dependencies if _plain(need).startswith(_plain(root)[:4])]
    hint = f"pip install {' '.join(repr(need) for need in wanted or app.dependencies) or repr(root)}"
    return f"{start} needs the module {name!r}, which is not installed: {hint}"


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def _place(error: BaseException, directory: Path) -> str:
    """Where in the app it happened."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if Path(frame.filename).is_relative_to(directory)]
    return f" ({Path(own[-1].filename).relative_to(directory)}, line {own[-1].lineno})" if own else ""
