"""What a table's keys mean: read from the `Attributes:` of the classes that they are written for."""

import re
from inspect import cleandoc

_ENTRY = re.compile(r"^(\w+): (.*)$")


def meanings(cls: type) -> dict[str, str]:
    """One line per documented attribute, inherited ones included; the youngest class has the last word."""
    found: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        found.update(_attributes(base.__dict__.get("__doc__") or ""))
    return found


def first_line(cls: object) -> str:
    """The first line of a docstring, or nothing."""
    return next(iter((cls.__doc__ or "").strip().splitlines()), "")


def _attributes(docstring: str) -> dict[str, str]:
    """The `Attributes:` section of Google's style; a deeper line goes on with the entry above it."""
    _, marker, section = cleandoc(docstring).partition("Attributes:\n")
    found: dict[str, str] = {}
    name = ""
    for line in section.splitlines() if marker else ():
        if line.strip() and not line.startswith("    "):
            break  # the next section
        entry = _ENTRY.match(line[4:])
        if entry:
            name, found[entry[1]] = entry[1], entry[2].strip()
        elif name and line.strip():
            found[name] += " " + line.strip()
    return found
