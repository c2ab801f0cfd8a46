"""`[sweep.report]`: what the tables and pictures of a sweep show."""

from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, ValidationError

from fedsim.config_tables import Section
from fedsim.errors import ConfigError
from fedsim.sweep.axes import Axis
from fedsim.toml import describe_error, nearest

DEFAULT_METRICS = (
    "test_accuracy.last",
    "client_test_accuracy.last",
    "attack_success.at_stop",
    "attack_success.auc50",
    "detector.f1",
)
"""Shown where a sweep names none, as far as they were measured."""


def _listed(value: Any) -> Any:
    return (value,) if isinstance(value, str) else tuple(value) if isinstance(value, list) else value


Names = Annotated[tuple[str, ...], BeforeValidator(_listed)]


class Report(Section):
    """What is shown; a name alone is short for a list of one.

    Attributes:
        rows: axes of the tables' rows; by default the first axis.
        columns: axes of their columns, by default the second; without any, the metrics are the columns. Axes
            that are neither make further tables.
        metrics: flattened paths of result.json's `metrics`.
        compare: labels, or `axis=label`: the axis's other values are compared with this one, seed by seed.
        matched: lifespans are compared over pairs of runs whose success at the stop differs by no more than
            this (and is at least one half).
        tune: axes that are settled, not shown: a cell of the other axes keeps the value with the best mean of
            `by` over seeds.
        by: a metric on validation data.
        curves: axes whose values share a panel, a picture for each; by default the first axis.
        curve: the metric drawn against rounds; by default `attack_success` where it was measured.
    """

    rows: Names | None = None
    columns: Names | None = None
    metrics: Names = ()
    compare: Names = ()
    matched: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.1
    tune: Names = ()
    by: str = "client_val_accuracy.best"
    curves: Names | None = None
    curve: str | None = None


def read_report(told: Any, axes: Sequence[Axis]) -> Report:
    """The report with its defaults filled in.

    Raises:
        ConfigError: an unknown key, or the name of no axis.
    """
    try:
        report = Report.model_validate(told)
    except ValidationError as error:
        keys = tuple(Report.model_fields)
        raise ConfigError(describe_error(error, told, lambda _: keys, "sweep.report")) from None
    names = [axis.name for axis in axes]
    for key in ("rows", "columns", "curves", "tune"):
        for name in getattr(report, key) or ():
            if name not in names:
                raise ConfigError(f"sweep.report.{key}: no axis is called {name!r}{nearest(name, names)}")
    return _filled(report, [name for name in names if name not in report.tune])


def _filled(report: Report, names: Sequence[str]) -> Report:
    rows = report.rows if report.rows is not None else tuple(names[:1])
    others = [name for name in names if name not in rows]
    columns = report.columns if report.columns is not None else tuple(others[:1])
    curves = report.curves if report.curves is not None else tuple(names[:1])
    if set(rows) & set(columns):
        raise ConfigError("sweep.report: rows and columns share an axis.")
    if not names:
        raise ConfigError("sweep.report.tune: no axis is left to be shown.")
    if settled := set(report.tune) & {*rows, *columns, *curves}:
        raise ConfigError(f"sweep.report.tune: {sorted(settled)[0]!r} is settled, so it cannot be shown too.")
    return report.model_copy(update={"rows": rows, "columns": columns, "curves": curves})


def baselines(report: Report, axes: Sequence[Axis]) -> tuple[tuple[str, str], ...]:
    """Axis and label of each baseline of the report.

    Raises:
        ConfigError: no axis, or several, have the label.
    """
    shown = [axis for axis in axes if axis.name not in report.tune]
    return tuple(_baseline(text, shown) for text in report.compare)


def _baseline(compare: str, axes: Sequence[Axis]) -> tuple[str, str]:
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
