"""What the runs of a sweep have brought so far: one row for each cell and seed."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from fedsim.config import Experiment
from fedsim.run.atomic_files import finite
from fedsim.run.directory import RunDirectory
from fedsim.run.seed_run import judged
from fedsim.sweep.cells import Cell
from fedsim.sweep.plan import Task
from fedsim.sweep.play import Ended
from fedsim.sweep.shelf import Shelf


@dataclass(frozen=True)
class Row:
    """One cell and one seed.

    Attributes:
        axes: the cell's labels.
        seed: of the run.
        digest: of what can touch its numbers.
        folder: of the run, in the sweep's folder.
        status: completed, expectation_failed, failed, or missing where it was not played.
        reason: why it did not complete.
        seconds: that its rounds took.
        metrics: flattened, see `flattened`.
    """

    axes: Mapping[str, str]
    seed: int
    digest: str
    folder: str
    status: str
    reason: str | None = None
    seconds: float | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)

    @property
    def ended(self) -> bool:
        """Are there numbers?"""
        return self.status in ("completed", "expectation_failed")


def rows_of(shelf: Shelf, cells: Sequence[Cell], seeds: Sequence[int]) -> list[Row]:
    """All rows, cell by cell.

    Args:
        shelf: where they lie.
        cells: of the whole sweep.
        seeds: of the file.
    """
    return [_row(shelf, cell.choices, cell.with_seed(seed)) for cell in cells for seed in seeds]


def renewed(shelf: Shelf, cell: Cell, row: Row, task: Task, ended: Ended) -> Row:
    """The row of a cell after a task has ended, which may be that of another row."""
    if shelf.out / row.folder != task.folder:
        return row
    # It counts even if sources were changed meanwhile; the next sweep will see to that.
    fresh = _row(replace(shelf, any_code=True), row.axes, cell.with_seed(row.seed))
    if ended.status == "failed":  # perhaps without a result.json of its own
        told = fresh.reason if fresh.reason and fresh.reason in (ended.reason or "") else ended.reason
        return replace(fresh, status="failed", reason=told, metrics={})
    return fresh


def _row(shelf: Shelf, choices: Mapping[str, str], experiment: Experiment) -> Row:
    (seed,) = experiment.seeds
    folder = shelf.folder(experiment)
    row = Row(choices, seed, experiment.digest(), str(folder.relative_to(shelf.out)), "missing")
    result = shelf.result(experiment)
    if result is None:
        return row
    if result["status"] == "failed":
        return replace(row, status="failed", reason=result["reason"])
    result = judged(experiment, result)
    return replace(
        row,
        status=result["status"],
        reason=result["reason"],
        seconds=sum(result["timing"].values()),
        metrics=flattened(result),
    )


def flattened(result: Mapping[str, Any]) -> dict[str, float]:
    """`metrics` of a result.json as paths to numbers.

    `test_accuracy.last` and `.best` are values (their rounds are left out); `attack_success.at_stop`,
    `attack_lifespan.rounds`, `detector.f1` are what result.json has under these names. Truth values are 1 and
    0; what was not measured is left out. Added are `defence_active`, `test_accuracy.change` (from the clean
    run, at the last round) and `attack_success.above_floor` (at the stop).
    """
    flat = _numbers(result["metrics"], "")
    if result.get("defence_active") is not None:
        flat["defence_active"] = float(result["defence_active"])
    for name, one, other in (
        ("test_accuracy.change", "test_accuracy.last", "clean_test_accuracy.last"),
        ("attack_success.above_floor", "attack_success.at_stop", "attack_success.floor_at_stop"),
    ):
        if one in flat and other in flat:
            flat[name] = flat[one] - flat[other]
    return flat


def _numbers(table: Mapping[str, Any], prefix: str) -> dict[str, float]:
    flat: dict[str, float] = {}
    for key, value in table.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and {"value", "round"} <= set(value):
            flat[name] = value["value"]
        elif isinstance(value, Mapping):
            flat |= _numbers(value, f"{name}.")
        elif isinstance(value, int | float):
            flat[name] = float(value)
    return flat


def records_of(out: Path, row: Row) -> list[dict[str, Any]]:
    """The rounds of a run that ended, as in rounds.jsonl."""
    lines = RunDirectory(out / row.folder).rounds.read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def write_rows(path: Path, rows: Sequence[Row]) -> None:
    """cells.jsonl, whole or not at all."""
    lines = [json.dumps(finite(asdict(row)), allow_nan=False, ensure_ascii=False) for row in rows]
    temporary = path.with_name(f".{path.name}.partial")
    temporary.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    temporary.replace(path)
