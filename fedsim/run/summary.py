"""Several seeds as one number with its uncertainty."""

import math
from collections.abc import Mapping, Sequence
from statistics import fmean, stdev
from typing import Any

from scipy.special import stdtrit  # scipy.stats takes a second to import

STATISTICS = ("last", "best", "validation_selected")


def interval(values: Sequence[float]) -> dict[str, Any]:
    """Mean, sample standard deviation, and the 95 % interval of the mean by Student's t.

    With one value there is no deviation and no interval: both are None.
    """
    mean = fmean(values)
    if len(values) < 2:
        return {"n": len(values), "mean": mean, "std": None, "half_width": None, "low": None, "high": None}
    deviation = stdev(values)
    half = float(stdtrit(len(values) - 1, 0.975)) * deviation / math.sqrt(len(values))
    return {
        "n": len(values),
        "mean": mean,
        "std": deviation,
        "half_width": half,
        "low": mean - half,
        "high": mean + half,
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
    return told
