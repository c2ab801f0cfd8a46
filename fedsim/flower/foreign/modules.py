"""Somebody else's modules, importable inside a scope and nowhere else.

A Flower app is not installed: its directory goes first on the import path while its code runs. Two apps may
both have a `task.py`, and the server's and the clients' side of one app are separate programs even where one
process runs both, so each `AppModules` keeps module objects of its own and puts them in place only inside
its scope.
"""

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

# What fedsim and Flower run on is loaded before any app, and so it wins, as it does in Flower's processes.
_PROTECTED = sys.stdlib_module_names | {"fedsim", "flwr", "numpy", "torch", "ray", "google", "__main__"}


_active: list["AppModules"] = []  # whose scopes the interpreter is in, outermost first


class AppModules:
    """The modules of one side of one app."""

    def __init__(self, directory: Path | None) -> None:
        """`directory` None: an installed app, whose modules are everybody's."""
        self._directory = directory
        self._names = frozenset() if directory is None else _top_level_names(directory)
        self._own: dict[str, ModuleType] = {}
        importlib.invalidate_caches()  # the directory may have been written a moment ago

    @contextmanager
    def active(self) -> Iterator[None]:
        """The app's modules are importable, and are its own, inside this scope; scopes of two apps nest."""
        if self._directory is None or self in _active:
            yield
            return
        path = str(self._directory)
        hidden = self._take_out() if any(name in sys.modules for name in self._names) else {}
        sys.modules.update(self._own)
        size = len(sys.modules)
        sys.path.insert(0, path)
        _active.append(self)
        try:
            yield
        finally:
            _active.remove(self)
            if path in sys.path:
                sys.path.remove(path)
            if len(sys.modules) == size:  # nothing was imported, which is quicker to tell than what was
                self._own = {name: sys.modules.pop(name) for name in self._own}
            else:
                self._own = self._take_out()
            sys.modules.update(hidden)

    def load(self, reference: str) -> Any:
        """The object that `module:attribute.attribute` names; call it inside the scope.

        Raises:
            ImportError: there is no such module, or it imports something that is missing.
            AttributeError: the module has no such object.
        """
        name, _, attributes = reference.partition(":")
        found: Any = importlib.import_module(name)
        for attribute in attributes.split("."):
            found = getattr(found, attribute)
        return found

    def has(self, module: str) -> bool:
        """Whether a module of this name lies in the app's directory."""
        return module.partition(".")[0] in self._names

    def _take_out(self) -> dict[str, ModuleType]:
        """Remove the modules of these names from the interpreter and return them."""
        names = [name for name in sys.modules if name.partition(".")[0] in self._names]
        return {name: sys.modules.pop(name) for name in names}


def _top_level_names(directory: Path) -> frozenset[str]:
    """Names that `import` would find in the directory and that may be the app's own."""
    names = {path.stem for path in directory.glob("*.py")}
    names |= {path.name for path in directory.iterdir() if path.is_dir() and any(path.glob("*.py"))}
    names |= {path.name for path in directory.iterdir() if path.is_dir() and any(path.glob("*/*.py"))}
    return frozenset(
        n for n in names if n.isidentifier() and n not in _PROTECTED and not _is_here(n, directory)
    )


def _is_here(name: str, directory: Path) -> bool:
    """Whether a module of this name is loaded already, from this very directory: the app is installed."""
    if any(name in modules._names for modules in _active):
        return False  # loaded by a scope, for that scope only
    file = getattr(sys.modules.get(name), "__file__", None)
    return file is not None and Path(file).is_relative_to(directory)
