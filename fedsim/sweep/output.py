"""The files of a sweep's folder, besides its runs.

sweep.json       axes, seeds, report, how many runs ended, statistics of each cell; whether it is whole
cells.jsonl      one line per cell and seed: labels, status, reason, folder, metrics flattened
runs.csv         the same as a table
tables.md        rows x columns, mean and 95 % interval over seeds; comparisons
statistics.csv   the numbers behind the tables
comparisons.csv  differences to the baseline with p-values, where one is named
*.png            heat maps and curves
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fedsim.run.atomic_files import save_json
from fedsim.sweep.collect import Row, write_rows
from fedsim.sweep.file import Sweep
from fedsim.sweep.paired import Comparison, comparisons
from fedsim.sweep.pivot import Pivot, entry, groups, pivots
from fedsim.sweep.settings import DEFAULT_METRICS
from fedsim.sweep.text import (
    choices_markdown,
    comparisons_csv,
    comparisons_markdown,
    pivot_markdown,
    rows_csv,
    statistics_csv,
)
from fedsim.sweep.tuning import Choice, settled


def metrics_of(sweep: Sweep, rows: Sequence[Row]) -> tuple[str, ...]:
    """The report's metrics; without any, the usual ones that were measured."""
    measured = {metric for row in rows for metric in row.metrics}
    return sweep.report.metrics or tuple(name for name in DEFAULT_METRICS if name in measured)


def shown(sweep: Sweep, rows: Sequence[Row]) -> tuple[list[Row], list[Choice]]:
    """The rows behind tables and pictures, and how the axes that are not shown were settled."""
    return settled(rows, sweep.report.tune, sweep.report.by)


def unsettled(sweep: Sweep, rows: Sequence[Row]) -> list[str]:
    """A line for each cell whose runs all ended without measuring what it should be settled by."""
    lost = [one for one in shown(sweep, rows)[1] if one.chosen is None and one.complete]
    return [
        f"sweep.report.by: {sweep.report.by!r} was not measured{f' at {one.place}' if one.place else ''}, "
        "so that nothing is settled there: choose another, or let evaluate.clients measure it."
        for one in lost
    ]


def tables_of(sweep: Sweep, rows: Sequence[Row]) -> list[Pivot]:
    """The report's tables."""
    report, (kept, _) = sweep.report, shown(sweep, rows)
    return pivots(kept, report.rows or (), report.columns or (), metrics_of(sweep, rows))


def comparisons_of(sweep: Sweep, rows: Sequence[Row]) -> list[Comparison]:
    """The report's comparisons; none without a baseline."""
    kept, metrics = shown(sweep, rows)[0], metrics_of(sweep, rows)
    return comparisons(kept, sweep.baselines, metrics, sweep.report.matched)


def markdown(sweep: Sweep, rows: Sequence[Row]) -> str:
    """All tables, and a line on what is not in them."""
    parts = [pivot_markdown(pivot) for pivot in tables_of(sweep, rows)]
    if found := comparisons_of(sweep, rows):
        parts.append(comparisons_markdown(found, sweep.report.matched))
    if choices := shown(sweep, rows)[1]:
        parts.append(choices_markdown(choices, sweep.report.by))
    parts.append(_footnote(sweep, rows))
    return "\n".join(parts)


def _footnote(sweep: Sweep, rows: Sequence[Row]) -> str:
    count = Counter(row.status for row in rows)
    told = ", ".join(f"{number} {status.replace('_', ' ')}" for status, number in count.items())
    unknown = [name for name in sweep.report.metrics if not any(name in row.metrics for row in rows)]
    missing = f" Not measured by any: {', '.join(unknown)}." if unknown and count["completed"] else ""
    return f"{len(rows)} runs: {told}. Mean ± half of the 95 % interval over seeds.{missing}\n"


def write_state(out: Path, sweep: Sweep, rows: Sequence[Row]) -> None:
    """cells.jsonl and sweep.json: what is known so far."""
    write_rows(out / "cells.jsonl", rows)
    names, metrics = [axis.name for axis in sweep.axes], metrics_of(sweep, rows)
    cells: list[dict[str, Any]] = []
    for labels, part in groups(rows, names).items():
        statistics = {metric: entry(part, metric).statistic for metric in metrics}
        status = dict(Counter(row.status for row in part))
        cells.append({"axes": dict(zip(names, labels, strict=True)), "status": status, "metrics": statistics})
    told = {
        "name": sweep.name,
        "axes": {axis.name: list(axis.values) for axis in sweep.axes},
        "seeds": list(dict.fromkeys(row.seed for row in rows)),
        "report": sweep.report.model_dump(mode="json"),
        "status": dict(Counter(row.status for row in rows)),
        "complete": all(row.ended for row in rows),
        "cells": cells,
        "settled": [asdict(one) for one in shown(sweep, rows)[1]],
        "comparisons": [asdict(one) for one in comparisons_of(sweep, rows)],
    }
    save_json(out / "sweep.json", told)


def write_tables(out: Path, sweep: Sweep, rows: Sequence[Row]) -> None:
    """Markdown and CSV."""
    files = {
        "tables.md": markdown(sweep, rows),
        "runs.csv": rows_csv(rows),
        "statistics.csv": statistics_csv(rows, metrics_of(sweep, rows)),
    }
    found = comparisons_of(sweep, rows)
    if found:
        files["comparisons.csv"] = comparisons_csv(found)
    for name, text in files.items():
        (out / name).write_text(text, encoding="utf-8")
