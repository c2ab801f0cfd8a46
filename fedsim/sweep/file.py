"""A sweep file as values: the experiment's tables, the axes, the report."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ConfigDict, ValidationError, field_validator

from fedsim.config_tables import Section
from fedsim.errors import ConfigError
from fedsim.sweep.axes import Axis, read_axes
from fedsim.toml import apply_override, describe_error, nearest, read_toml

DEFAULT_METRICS = (
    "test_accuracy.last",
    "client_test_accuracy.last",
    "attack_success.at_stop",
    "attack_success.auc50",
    "detector.f1",
)
"""Shown where a sweep names none, as far as they were measured."""


class Report(Section):
    """`[sweep.report]`: what the tables and pictures show.

    Attributes:
        rows, columns: axes of the tables; without columns, the metrics are the columns. Other axes make
            further tables. By default the first axis and the second.
        metrics: flattened paths of result.json's `metrics`.
        compare: `axis=label`, or a label that one axis has: the others are compared with it by seed.
        curves: axes whose values share a panel; one picture for each. By default the first axis.
        curve: the metric drawn against rounds; by default `attack_success` where it was measured.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    rows: tuple[str, ...] | None = None
    columns: tuple[str, ...] | None = None
    metrics: tuple[str, ...] = ()
    compare: str | None = None
    curves: tuple[str, ...] | None = None
    curve: str | None = None

    @field_validator("rows", "columns", "curves", mode="before")
    @classmethod
    def _one_or_many(cls, value: Any) -> Any:
        return (value,) if isinstance(value, str) else tuple(value) if isinstance(value, list) else value


@dataclass(frozen=True)
class Sweep:
    """A sweep file, read.

    Attributes:
        file: its path.
        base: the experiment's tables, with a name.
        axes: in the order of the file.
        report: rows and columns filled in.
        baseline: axis and label that the others are compared with.
    """

    file: Path
    base: Mapping[str, Any]
    axes: tuple[Axis, ...]
    report: Report
    baseline: tuple[str, str] | None

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
    report = _report(told, axes)
    return Sweep(path, raw, axes, report, _baseline(report.compare, axes))


def _report(told: Any, axes: Sequence[Axis]) -> Report:
    try:
        report = Report.model_validate(told)
    except ValidationError as error:
        keys = tuple(Report.model_fields)
        raise ConfigError(describe_error(error, told, lambda _: keys, "sweep.report")) from None
    names = [axis.name for axis in axes]
    for key in ("rows", "columns", "curves"):
        for name in getattr(report, key) or ():
            if name not in names:
                raise ConfigError(f"sweep.report.{key}: no axis is called {name!r}{nearest(name, names)}")
    rows = report.rows if report.rows is not None else tuple(names[:1])
    others = [name for name in names if name not in rows]
    columns = report.columns if report.columns is not None else tuple(others[:1])
    if set(rows) & set(columns):
        raise ConfigError("sweep.report: rows and columns share an axis.")
    curves = report.curves if report.curves is not None else tuple(names[:1])
    return report.model_copy(update={"rows": rows, "columns": columns, "curves": curves})


def _baseline(compare: str | None, axes: Sequence[Axis]) -> tuple[str, str] | None:
    if compare is None:
        return None
    for axis in axes:
        for label in axis.values:
            if compare == f"{axis.name}={label}":
                return axis.name, label
    having = [axis.name for axis in axes if compare in axis.values]
    if len(having) == 1:
        return having[0], compare
    known = [f"{axis.name}={label}" for axis in axes for label in axis.values]
    problem = "several axes have" if having else "no axis has"
    raise ConfigError(f"sweep.report.compare: {problem} the value {compare!r}{nearest(compare, known)}")
