"""From the records of finished rounds to the numbers that are reported.

A record is one line of `rounds.jsonl`. Its `metrics` are flat: name -> value, where

- `test_accuracy`, `test_loss`: the global model on the server's test set;
- `client_test_accuracy`, `client_val_loss`, ...: every client's own model on its own split, pooled over
  examples (sum / count, so that a large client counts for more);
- `client_mean_test_accuracy`, ...: the same, but every client counts alike (clients without examples of
  the split are left out);
- `attack_success`: poisoned examples of the server's test set that the global model gives the wanted label;
  `attack_floor`, `clean_test_accuracy`: the same trigger, and no trigger, on the clean run's model of the
  same round; `client_attack_success_benign`, `..._malicious`: the clients' own models on their test splits;
- `train_loss`, ...: of local training, pooled over the cohort;
- `client_diagnostic_...`: what a client method tells of its clients' models or data; every client counts
  alike.

Its `clients` hold the spread of the client metrics: the plain mean over clients, quantiles, and where at
most 100 clients were measured each one's own value, by partition.
"""

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

import numpy as np

from fedsim.contracts import LocalEvaluation
from fedsim.metrics import Sum, merge
from fedsim.training.method import DIAGNOSTIC

LISTED = 100  # clients whose values are told one by one; more would swell every record
QUANTILES = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0)
SELECTORS = ("client_val_accuracy", "client_val_loss")  # the first that a run has selects its round

MEAN = "client_mean_"
"""Prefix of metrics in which every client counts alike."""

Record = Mapping[str, Any]


def lower_is_better(name: str) -> bool:
    """Losses and errors fall; everything else rises."""
    return name.endswith(("loss", "error"))


def client_metrics(evaluations: Sequence[LocalEvaluation]) -> tuple[dict[str, float | None], dict[str, Any]]:
    """(value by metric, spread by metric) of the clients' own evaluations: pooled, and a mean of clients."""
    pooled = {f"client_{name}": value.mean for name, value in merge(e.metrics for e in evaluations).items()}
    spread = {f"client_{name}": _spread(evaluations, name) for name in _names(evaluations)}
    for name in _names(evaluations):
        if found := _by_client(evaluations, name):
            spread[f"client_{name}"]["by_client"] = found
    alike = {
        f"{MEAN}{name}": spread[f"client_{name}"]["mean_over_clients"]
        for name in _names(evaluations)
        if not is_diagnostic(f"client_{name}")
    }
    return pooled | alike, spread


def is_diagnostic(name: str) -> bool:
    """Is this a metric that tells of clients' models or data, not of how well they predict?"""
    return name.startswith(f"client_{DIAGNOSTIC}")


def _by_client(evaluations: Sequence[LocalEvaluation], name: str) -> dict[str, float]:
    """Value by partition; nothing where too many were measured. JSON's keys are words."""
    means = {str(one.partition): one.metrics[name].mean for one in evaluations if name in one.metrics}
    known = {partition: mean for partition, mean in means.items() if mean is not None}
    return known if len(evaluations) <= LISTED else {}


def success_by_camp(
    evaluations: Sequence[LocalEvaluation], malicious: Sequence[int]
) -> dict[str, float | None]:
    """`client_attack_success` of benign and of malicious clients apart, pooled over examples."""
    found: dict[str, float | None] = {}
    for camp, wanted in (("benign", False), ("malicious", True)):
        members = [one.metrics for one in evaluations if (one.partition in malicious) is wanted]
        pooled = merge(members).get("attack_success")
        found[f"client_attack_success_{camp}"] = pooled.mean if pooled else None
    return found


def empty_selections(records: Sequence[Record]) -> list[int]:
    """Rounds in which the rule gave every client weight 0, so that the model stayed."""
    weighed = ((record["round"], record["weights"]) for record in records)
    return [at for at, weights in weighed if weights is not None and not any(weights)]


def _names(evaluations: Sequence[LocalEvaluation]) -> list[str]:
    return list(dict.fromkeys(name for evaluation in evaluations for name in evaluation.metrics))


def _spread(evaluations: Sequence[LocalEvaluation], name: str) -> dict[str, Any]:
    """The plain mean over clients and quantiles; clients without examples of the split are left out."""
    sums = [evaluation.metrics.get(name, Sum(0.0, 0.0)) for evaluation in evaluations]
    values = [value.mean for value in sums if value.mean is not None]
    if not values:
        return {"clients": 0, "mean_over_clients": None, "quantiles": {}}
    levels = np.quantile(np.asarray(values, dtype=np.float64), QUANTILES).tolist()
    return {
        "clients": len(values),
        "mean_over_clients": fmean(values),
        "quantiles": {f"{level:g}": value for level, value in zip(QUANTILES, levels, strict=True)},
    }


def summarise(records: Sequence[Record], facts: Mapping[str, Any]) -> dict[str, Any]:
    """`metrics` of result.json.

    Args:
        records: of all finished rounds.
        facts: `server_test` (examples), `clients` (who is evaluated) and so on, told beside each metric.

    Returns:
        By metric: what was measured where, and its last, best and validation-selected value with rounds.
    """
    names = list(dict.fromkeys(name for record in records for name in record["metrics"]))
    selected = _selected_round(records)
    summary: dict[str, Any] = {}
    for name in names:
        points = [
            (record["round"], record["metrics"][name])
            for record in records
            if record["metrics"].get(name) is not None
        ]
        if points:
            summary[name] = _told(name, facts) | _statistics(name, points, selected)
    spreads = {record["round"]: record.get("clients", {}) for record in records}
    for name, entry in summary.items():
        entry["last"] |= spreads[entry["last"]["round"]].get(name, {})
    return summary


def _statistics(
    name: str, points: Sequence[tuple[int, float]], selected: tuple[int, str] | None
) -> dict[str, Any]:
    pick = min if lower_is_better(name) else max
    best = pick(points, key=lambda point: point[1])  # the first of equals
    at = dict(points)
    chosen = None
    if selected is not None and selected[0] in at:
        chosen = {"value": at[selected[0]], "round": selected[0], "selected_by": selected[1]}
    return {
        "last": {"value": points[-1][1], "round": points[-1][0]},
        "best": {"value": best[1], "round": best[0]},
        "validation_selected": chosen,
    }


def _selected_round(records: Sequence[Record]) -> tuple[int, str] | None:
    """The first round with the best validation value, among rounds where the clients were evaluated."""
    for name in SELECTORS:
        points = [
            (record["round"], record["metrics"][name])
            for record in records
            if record["metrics"].get(name) is not None
        ]
        if points:
            pick = min if lower_is_better(name) else max
            return pick(points, key=lambda point: point[1])[0], name
    return None


def _told(name: str, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Which model, on which examples, at which moment, over which clients."""
    if name == "clean_client_test_accuracy":
        told = _told("client_test_accuracy", facts)
        return {**told, "model": f"{told['model']}, in the clean run after the same round"}
    if name in ("attack_floor", "clean_test_accuracy"):
        return {**_told("test_accuracy", facts), "model": "the clean run's, after the same round"}
    if name.startswith("client_attack_success"):
        camp = name.removeprefix("client_attack_success").strip("_")
        told = _told("client_test_accuracy", facts)
        return {**told, "clients": f"{told['clients']}, {camp} only" if camp else told["clients"]}
    if is_diagnostic(name):
        told = _told("client_mean_test_accuracy", facts)
        return {**told, "examples": "each client's own data", "about": "the client's model or data"}
    if name.startswith("client_"):
        alike = name.startswith(MEAN)
        split = name.removeprefix(MEAN if alike else "client_").partition("_")[0]
        return {
            "model": "personal",
            "examples": f"each client's own {split} split",
            "moment": "after the round: the new shared tensors with the client's kept private tensors",
            "clients": facts["evaluated_clients"],
            "pooling": "mean of the clients' values" if alike else "sum over examples / number of examples",
        }
    if name.startswith("train_"):
        return {
            "model": "local",
            "examples": "each client's own train split",
            "moment": "during local training",
            "clients": "accepted clients of the round",
            "pooling": "sum over examples / number of examples",
        }
    return {
        "model": "global",
        "examples": "the server's test set",
        "moment": "after the round's aggregation",
        "clients": None,
        "pooling": "sum over examples / number of examples",
    }
