"""What an experiment file says its metrics must be."""

from collections.abc import Mapping, Sequence
from typing import Any

from fedsim.config import Experiment
from fedsim.config_tables import Expectation
from fedsim.errors import ConfigError
from fedsim.run.results import is_diagnostic
from fedsim.run.statistics import statistics_of
from fedsim.toml import nearest


def refuse_unknown(experiment: Experiment, known: Sequence[str]) -> None:
    """Refuse expectations on what the run will not measure; diagnostics may be a method's own.

    Args:
        experiment: whose expectations they are.
        known: metrics, as `fedsim.run.server_evaluation.known_metrics` has them.

    Raises:
        ConfigError: naming the nearest metric, or the statistics that the metric has.
    """
    attack = experiment.attack
    after = experiment.rounds - attack.window[1] if attack and attack.window else 0
    for name, wanted in experiment.expect.items():
        if name not in known and not is_diagnostic(name):
            raise ConfigError(f"expect.{name}: this experiment does not measure it{nearest(name, known)}")
        told = statistics_of(name, after)
        if wanted.statistic not in told:
            raise ConfigError(
                f"expect.{name}.statistic: this experiment does not tell {wanted.statistic!r} of it; "
                f"known: {', '.join(told)}"
            )


def check(expect: Mapping[str, Expectation], metrics: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Each expectation with the value found, and whether it is met; a value never measured meets nothing."""
    return [_checked(name, wanted, metrics.get(name) or {}) for name, wanted in expect.items()]


def _checked(name: str, wanted: Expectation, metric: Mapping[str, Any]) -> dict[str, Any]:
    found = metric.get(wanted.statistic)
    value = found.get("value") if isinstance(found, Mapping) else found
    low, high = wanted.at_least, wanted.at_most
    met = value is not None and (low is None or value >= low) and (high is None or value <= high)
    return {
        "metric": name,
        "statistic": wanted.statistic,
        "at_least": low,
        "at_most": high,
        "value": value,
        "met": met,
    }


def unmet(checks: Sequence[Mapping[str, Any]]) -> str | None:
    """One line on all expectations that were not met, or None."""
    lines = [
        f"{check['metric']} ({check['statistic']}) is {_number(check['value'])}, expected {_bounds(check)}"
        for check in checks
        if not check["met"]
    ]
    return "; ".join(lines) or None


def _number(value: float | None) -> str:
    return "not measured" if value is None else f"{value:.4g}"


def _bounds(check: Mapping[str, Any]) -> str:
    low, high = check["at_least"], check["at_most"]
    words = ([] if low is None else [f"at least {low:g}"]) + ([] if high is None else [f"at most {high:g}"])
    return " and ".join(words)
