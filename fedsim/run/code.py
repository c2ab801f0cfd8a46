"""Which code made a run: a digest of the sources that can touch its numbers.

That is the four packages but for what only shows results, and for plugins from elsewhere their module with
what it imports from its own folder. A run that other code made is not taken for one of this code.
"""

import ast
import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from fedsim.config import Experiment
from fedsim.plugins import GROUPS, available

OURS = ("fedsim", "strategies", "clients", "attacks")
SHOWING = ("fedsim/report", "fedsim/sweep", "fedsim/cli.py")
"""Parts that read results and make none."""

_DOTTED = re.compile(r"([A-Za-z_]\w*(?:\.\w+)*):[A-Za-z_][\w.]*")


def code_digest(experiment: Experiment, *, now: str | None = None) -> str:
    """SHA-256 of the code that this process runs an experiment with.

    Sources are read once per process, as modules are. Where ours were changed since, modules that are
    imported late may be newer than others: then the digest is one that no other process finds.

    Args:
        experiment: its plugins from elsewhere count too.
        now: `own_digest()`, where it is known.
    """
    state = hashlib.sha256(_AT_START.encode())
    now = own_digest() if now is None else now
    if now != _AT_START:
        state.update(now.encode())
    for module in sorted(foreign_modules(experiment.model_dump(mode="json"))):
        state.update(f"{module}|{_module_digest(module)}|".encode())
    return state.hexdigest()


def joined(before: str | None, now: str) -> str:
    """Of a run that was begun by one code and continued by another, which is neither's."""
    return now if before == now else hashlib.sha256(f"{before}, then {now}".encode()).hexdigest()


def own_digest() -> str:
    """SHA-256 of the four packages' sources, as they are now."""
    return _digest(_own_sources())


def _own_sources() -> Iterator[tuple[str, Path]]:
    for package in OURS:
        spec = find_spec(package)
        for folder in (spec.submodule_search_locations or ()) if spec else ():
            for path in sorted(Path(folder).rglob("*.py")):
                name = f"{package}/{path.relative_to(folder).as_posix()}"
                if not name.startswith(SHOWING):
                    yield name, path


def _digest(files: Iterable[tuple[str, Path]]) -> str:
    state = hashlib.sha256()
    for name, path in files:
        state.update(f"{name}|".encode() + hashlib.sha256(path.read_bytes()).digest())
    return state.hexdigest()


def foreign_modules(tables: Any) -> set[str]:
    """The modules of plugins that are not ours, by the words of an experiment's tables."""
    if isinstance(tables, Mapping):
        return {module for value in tables.values() for module in foreign_modules(value)}
    if isinstance(tables, list | tuple):
        return {module for value in tables for module in foreign_modules(value)}
    if not isinstance(tables, str):
        return set()
    dotted = [tables] if _DOTTED.fullmatch(tables) else _installed().get(tables, [])
    modules = {target.partition(":")[0] for target in dotted}
    return {module for module in modules if module.partition(".")[0] not in OURS}


@cache
def _installed() -> dict[str, list[str]]:
    """Dotted paths by the names under which plugins are installed."""
    found: dict[str, list[str]] = {}
    for group in GROUPS:
        for name, entry in available(group).items():
            found.setdefault(name, []).append(entry.value)
    return found


@cache
def _module_digest(module: str) -> str | None:
    """Of a package as a whole, or of a file with what it imports from beside it; None: no such module."""
    top = module.partition(".")[0]
    try:
        spec = find_spec(top)
    except (ImportError, ValueError):
        return None
    if spec is None or spec.origin is None:
        return None
    if spec.submodule_search_locations:
        folder = Path(spec.origin).parent
        return _digest((path.relative_to(folder).as_posix(), path) for path in sorted(folder.rglob("*.py")))
    return _digest(sorted(_with_neighbours(Path(spec.origin), {}).items()))


def _with_neighbours(path: Path, known: dict[str, Path]) -> dict[str, Path]:
    """A file and, one through another, those in its folder that it imports."""
    if path.suffix == ".py" and path.is_file() and path.name not in known:
        known[path.name] = path
        for name in _imports(path):
            neighbour = path.with_name(f"{name}.py")
            if neighbour.is_file():
                _with_neighbours(neighbour, known)
    return known


def _imports(path: Path) -> set[str]:
    """First words of the modules that a file imports; none where it is no Python."""
    try:
        nodes = list(ast.walk(ast.parse(path.read_bytes())))
    except (SyntaxError, ValueError):
        return set()
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module}
    return {name.partition(".")[0] for name in names}


_AT_START = own_digest()
