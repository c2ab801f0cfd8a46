"""Several seeds as one number with its uncertainty."""

import math
from collections.abc import Mapping, Sequence
from statistics import fmean, stdev
from typing import Any

from scipy.special import stdtrit  # scipy.stats takes a second to import

from fedsim.run.statistics import STATISTICS


def interval(values: Sequence[float]) -> dict[str, Any]:
    """Mean, sample standard deviation, and two 95 % intervals by Student's t.

    `low` to `high` (mean ± `half_width`) holds the mean over all seeds. `again`, a pair, is for those who
    repeat the run: n further seeds all fall inside with at least 95 %, if seeds give normal values:
    mean ± t(1 - 0.025 / n) s sqrt(1 + 1/n), by Bonferroni. With one value all of them are None.
    """
    mean, n = fmean(values), len(values)
    if n < 2:
        missing = dict.fromkeys(("std", "half_width", "low", "high", "again"))
        return {"n": n, "mean": mean, **missing}
    deviation = stdev(values)
    half = float(stdtrit(n - 1, 0.975)) * deviation / math.sqrt(n)
    wide = float(stdtrit(n - 1, 1 - 0.025 / n)) * deviation * math.sqrt(1 + 1 / n)
    return {
        "n": n,
        "mean": mean,
        "std": deviation,
        "half_width": half,
        "low": mean - half,
        "high": mean + half,
        "again": [mean - wide, mean + wide],
    }


def summary_of(name: str, results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """summary.json: every metric over the seeds that ended; failed seeds are named, never averaged.

    Args:
        name: of the experiment.
        results: the result.json of each seed.
    """
    ended = [result for result in results if result["status"] != "failed"]
    names = list(dict.fromkeys(metric for result in ended for metric in result["metrics"]))
    return {
        "name": name,
        "seeds": [result["seed"] for result in results],
        "status": {str(result["seed"]): result["status"] for result in results},
        "model_sha256": {str(result["seed"]): result.get("model_sha256") for result in results},
        "metrics": {metric: _over_seeds(metric, ended) for metric in names},
    }


def _over_seeds(metric: str, ended: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    told = {}
    for statistic in STATISTICS:
        found = [(result["metrics"].get(metric) or {}).get(statistic) for result in ended]
        values = {str(r["seed"]): f["value"] for r, f in zip(ended, found, strict=True) if f is not None}
        told[statistic] = {"values": values, **interval(list(values.values()))} if values else None
    return told | _single_numbers(metric, ended)


def _single_numbers(metric: str, ended: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What a metric tells beside points with a round, such as `attack_success.auc50`."""
    told: dict[str, Any] = {}
    entries = {str(result["seed"]): result["metrics"].get(metric) or {} for result in ended}
    for name in dict.fromkeys(name for entry in entries.values() for name in entry):
        values = {seed: entry.get(name) for seed, entry in entries.items()}
        numbers = {seed: value for seed, value in values.items() if isinstance(value, int | float)}
        if numbers and not any(isinstance(value, bool) for value in numbers.values()):
            told[name] = {"values": numbers, **interval(list(numbers.values()))}
    return told
