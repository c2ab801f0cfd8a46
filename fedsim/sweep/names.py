"""Which flattened metrics a cell can bring, so that a misspelt one is refused before anything is played."""

from collections.abc import Iterable, Mapping, Sequence

from fedsim.errors import ConfigError
from fedsim.run.results import is_diagnostic
from fedsim.run.statistics import STATISTICS, statistics_of
from fedsim.sweep.settings import Report
from fedsim.toml import nearest


def paths_of(known: Sequence[str], after: int) -> frozenset[str]:
    """The paths that `fedsim.sweep.collect.flattened` can find.

    Args:
        known: names of what the run measures, as `fedsim.run.server_evaluation.known_metrics` has them.
        after: rounds that the run goes on after an attack's last.
    """
    parts = {name: statistics_of(name, after) for name in known}
    found = {f"{name}.{part}" for name, own in parts.items() for part in own}
    found |= {"defence_active"} if "detector" in parts else set()
    found |= {"test_accuracy.change"} if {"test_accuracy", "clean_test_accuracy"} <= set(parts) else set()
    found |= {"attack_success.above_floor"} if {"attack_success", "attack_floor"} <= set(parts) else set()
    return frozenset(found)


def refuse_unmeasurable(report: Report, paths: Mapping[str, frozenset[str]]) -> None:
    """Refuse a report on what no cell can bring; names that a client method may add are let pass.

    Args:
        report: of the sweep.
        paths: by the cells' names.

    Raises:
        ConfigError: naming the key and the nearest metric.
    """
    every = frozenset().union(*paths.values())
    for path in report.metrics:
        _require("sweep.report.metrics", path, every)
    if report.tune:
        for cell, own in paths.items():
            _require(f"sweep.report.by: cell {cell}", report.by, own)
    if report.curve is not None:
        lines = frozenset(path.rpartition(".")[0] for path in every if path.endswith(".last"))
        _require("sweep.report.curve", report.curve, lines)


def _require(key: str, wanted: str, known: Iterable[str]) -> None:
    if wanted in known or _may_be_added(wanted):
        return
    hint = nearest(wanted, sorted(known))
    raise ConfigError(f"{key}: {wanted!r} is not measured{hint}")


def _may_be_added(path: str) -> bool:
    name, _, statistic = path.partition(".")
    return statistic in ("", *STATISTICS) and is_diagnostic(name)
