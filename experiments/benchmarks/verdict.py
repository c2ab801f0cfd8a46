"""Ratios against goals, and the table."""

from collections.abc import Mapping, Sequence
from typing import Any

from goals import GOALS, LIMITS
from profiled import lines
from rich.console import Console
from rich.table import Table
from session import Times
from spread import Spread, fastest, ratio


def ratios(times: Times, *, judged: bool = True) -> dict[str, dict[str, dict[str, Any]]]:
    """`ratios["W1"]["T2/flower"]`: median, low, high, goal, met; of pairs that were both timed.

    Args:
        times: of all systems.
        judged: compare with the goals, which hold for the full sizes.
    """
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for name in dict.fromkeys(variant for variant, _ in times):
        own = {label: value for (variant, label), value in times.items() if variant == name}
        for pair, goal in GOALS.get(name, {}).items():
            ours, other = (_label(own, part) for part in pair.split("/"))
            if ours is not None and other is not None:
                told = ratio(own[other], own[ours])
                found.setdefault(name, {})[pair] = _judged(told, goal if judged else None, ours, other)
    registered = _registered(times)
    return found | ({"W5": registered} if registered else {})


def _label(own: Mapping[str, Any], part: str) -> str | None:
    """`T1 ray` is the fastest of `T1 ray 2`, ...; `T1` that of all its backends; `pfl` of its threads."""
    return fastest(own, part)


def _registered(times: Times) -> dict[str, dict[str, Any]]:
    """1,000 against 10,000 registered clients, for the fastest place of each tier."""
    found = {}
    for pair, goal in GOALS["W5"].items():
        tier, _, sizes = pair.partition(" ")
        few, many = (
            {label: value for (variant, label), value in times.items() if variant == f"W5 {size}"}
            for size in sizes.split("/")
        )
        label = fastest(few, tier)
        if label is not None and label in many:
            found[pair] = _judged(ratio(few[label], many[label]), goal, label, label)
    return found


def _judged(spread: Spread, goal: float | None, ours: str, other: str) -> dict[str, Any]:
    met = None if goal is None else spread.median >= goal
    return {
        "median": spread.median,
        "low": spread.low,
        "high": spread.high,
        "goal": goal,
        "met": met,
        "between": [ours, other],
    }


def limits(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Start-up and memory of ours where there is a limit."""
    return [
        {
            "workload": workload,
            "label": row["label"],
            "what": what,
            "value": row[what],
            "limit": limit,
            "met": row[what] <= limit,
        }
        for (workload, backend, what), limit in LIMITS.items()
        for row in rows
        if row["workload"] == workload and row.get("backend") == backend and row.get(what)
        if row["tier"] in ("T1", "T2")
    ]


def show(report: Mapping[str, Any], console: Console) -> None:
    """The tables of a report."""
    console.print(_rows(report["rows"]))
    if report["ratios"]:
        console.print(_ratios(report["ratios"]))
    for limit in report["limits"]:
        word = "met" if limit["met"] else "MISSED"
        console.print(
            f"{limit['workload']} {limit['label']}: {limit['what']} {limit['value']:.3g}, "
            f"at most {limit['limit']:g}: {word}"
        )
    for line in lines(report["profiles"]):
        console.print(line)


def _rows(rows: Sequence[Mapping[str, Any]]) -> Table:
    table = Table(title="milliseconds a round", title_justify="left")
    for heading in ("workload", "system", "median", "min", "max", "peak MB", "start s", "model"):
        table.add_column(heading, justify="left" if heading in ("workload", "system") else "right")
    for row in rows:
        if "missing" in row:
            table.add_row(row["workload"], row["label"], f"missing: {row['missing']}")
            continue
        told = [f"{row['ms_per_round'][key]:.4g}" for key in ("median", "min", "max")]
        memory, start = f"{row['peak_mb']:.0f}", f"{row['startup_s']:.1f}"
        model = f"{row['model_distance']:.0e}" + ("" if row["model_agrees"] else " DIFFERS")
        table.add_row(row["workload"], row["label"], *told, memory, start, model)
    return table


def _ratios(found: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> Table:
    table = Table(title="times faster", title_justify="left")
    for heading in ("workload", "ratio", "median", "low", "high", "goal", ""):
        table.add_column(heading, justify="left" if heading in ("workload", "ratio") else "right")
    for workload, pairs in found.items():
        for pair, one in pairs.items():
            told = [f"{one[key]:.3g}" for key in ("median", "low", "high")]
            goal = "" if one["goal"] is None else f"{one['goal']:.3g}"
            met = {None: "", True: "met", False: "missed"}[one["met"]]
            table.add_row(workload, pair, *told, goal, met)
    return table
