"""A report as Markdown, for RESULTS.md: machine, ratios, times, limits."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from profiled import lines


def written(report: Mapping[str, Any], command: str) -> str:
    """The whole page.

    Args:
        report: as in benchmark.json.
        command: that made it, without paths of this machine.
    """
    parts = [
        "# Results",
        f"Printed by `{command}`; see README.md for what is measured.",
        _machine(report["machine"]),
        "## Times faster",
        _table(
            ("workload", "ratio", "median", "low", "high", "goal", ""),
            (
                (name, pair, *_numbers(one, ("median", "low", "high")), _goal(one["goal"]), _word(one["met"]))
                for name, pairs in report["ratios"].items()
                for pair, one in pairs.items()
            ),
        ),
        "## Milliseconds a round",
        _table(
            ("workload", "system", "median", "min", "max", "peak MB", "start s", "model"),
            (_row(row) for row in report["rows"]),
        ),
    ]
    if report["limits"]:
        limits = (
            (
                one["workload"],
                one["label"],
                one["what"],
                f"{one['value']:.3g}",
                f"{one['limit']:g}",
                _word(one["met"]),
            )
            for one in report["limits"]
        )
        parts += ["## Limits", _table(("workload", "system", "what", "found", "at most", ""), limits)]
    if report["profiles"]:
        parts += ["## What is left", *(f"- {line}" for line in lines(report["profiles"]))]
    return "\n\n".join(parts) + "\n"


def _machine(found: Mapping[str, Any]) -> str:
    versions = ", ".join(f"{name} {number}" for name, number in found["versions"].items())
    return (
        f"{found['cores']} cores ({found['machine']}, {found['cpu_capability']}), {found['memory_gib']} GiB; "
        f"{versions}."
    )


def _row(row: Mapping[str, Any]) -> Sequence[str]:
    if "missing" in row:
        return (row["workload"], row["label"], f"missing: {row['missing']}", "", "", "", "", "")
    agrees = f"{row['model_distance']:.0e}" + ("" if row["model_agrees"] else " DIFFERS")
    times = _numbers(row["ms_per_round"], ("median", "min", "max"))
    return (
        row["workload"],
        row["label"],
        *times,
        f"{row['peak_mb']:.0f}",
        f"{row['startup_s']:.1f}",
        agrees,
    )


def _numbers(found: Mapping[str, float], keys: Iterable[str]) -> list[str]:
    return [f"{found[key]:.3g}" if found[key] < 1000 else f"{found[key]:.0f}" for key in keys]


def _goal(goal: float | None) -> str:
    return "" if goal is None else f"{goal:.3g}"


def _word(met: bool | None) -> str:
    return {None: "", True: "met", False: "missed"}[met]


def _table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
