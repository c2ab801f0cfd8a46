"""A sweep file as values: the experiment's tables, the axes, the report."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedsim.errors import ConfigError
from fedsim.sweep.axes import Axis, read_axes
from fedsim.sweep.settings import Report, baselines, read_report
from fedsim.toml import apply_override, read_toml


@dataclass(frozen=True)
class Sweep:
    """A sweep file, read.

    Attributes:
        file: its path.
        base: the experiment's tables, with a name.
        axes: in the order of the file.
        report: rows and columns filled in.
        baselines: axes and labels that the others are compared with.
    """

    file: Path
    base: Mapping[str, Any]
    axes: tuple[Axis, ...]
    report: Report
    baselines: tuple[tuple[str, str], ...]

    @property
    def name(self) -> str:
        """Of the experiment."""
        return str(self.base["name"])


def read_sweep(path: Path, overrides: Sequence[str] = ()) -> Sweep:
    """The sweep in a file, changed by `key.path=value` overrides.

    Raises:
        ConfigError: the file is missing or no TOML, has no `[sweep]`, or its axes or report are refused.
    """
    raw = read_toml(path)
    for text in overrides:
        apply_override(raw, text)
    try:
        return _sweep(path, raw)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


def _sweep(path: Path, raw: dict[str, Any]) -> Sweep:
    table = raw.pop("sweep", None)
    if not isinstance(table, dict):
        raise ConfigError("has no table [sweep] with axes; a file without it is for `fedsim run`.")
    if "seed" in raw:
        if "seeds" in raw:
            raise ConfigError("seed and seeds are both given; keep one.")
        raw["seeds"] = [raw.pop("seed")]
    generic = path.stem in ("experiment", "sweep")
    stem = path.resolve().parent.name if generic else path.stem
    raw.setdefault("name", re.sub(r"[^A-Za-z0-9._-]+", "-", stem).strip("-._") or "sweep")
    told = table.pop("report", {})
    axes = read_axes(table, raw)
    report = read_report(told, axes)
    return Sweep(path, raw, axes, report, baselines(report, axes))
