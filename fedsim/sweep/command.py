"""`fedsim sweep`: from a file to played cells, tables and pictures."""

import fcntl
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

from rich.console import Console

from fedsim.engine.options import usable_cores
from fedsim.errors import CheckpointError, ConfigError
from fedsim.plugins import search_in
from fedsim.sweep.cells import Cell, cells_of, check_cells, chosen
from fedsim.sweep.collect import Row, renewed, rows_of, write_rows
from fedsim.sweep.crew import Alone, Children, Crew
from fedsim.sweep.file import Sweep, read_sweep
from fedsim.sweep.output import markdown, unsettled, write_state, write_tables
from fedsim.sweep.pictures import draw_heatmaps, draw_sweep_curves
from fedsim.sweep.plan import Task, tasks_of
from fedsim.sweep.progress import SweepProgress
from fedsim.sweep.schedule import play_all
from fedsim.sweep.shelf import Shelf


def sweep(
    file: Path,
    overrides: Sequence[str] = (),
    *,
    out: Path | None = None,
    resume: bool = False,
    filters: Sequence[str] = (),
    seeds: Sequence[int] | None = None,
    jobs: int | None = None,
    talk: bool = True,
    any_code: bool = False,
) -> int:
    """Play what is not finished, and show the whole table.

    Args:
        file: the sweep file.
        overrides: `key.path=value` changes of it.
        out: the sweep's folder; None: `runs/NAME/sweep`.
        resume: the folder has to hold a sweep already; without it, it may.
        filters: `axis=label,label`: play these cells only.
        seeds: play these seeds only.
        jobs: runs at a time; None: one per usable core.
        talk: show progress on a terminal.
        any_code: keep runs that other code made; else they are played again.

    Returns:
        The exit code: 1 where a run failed or nothing could be settled, 3 where one missed its expectation,
        else 0.

    Raises:
        FedsimError: with exit code 2, for bad input, before anything was played.
    """
    search_in(file.parent, Path.cwd())
    wanted = read_sweep(file, overrides)
    cells = cells_of(wanted)
    every = cells[0].experiment.seeds
    played = _seeds(every, seeds)
    todo = chosen(cells, wanted.axes, filters)
    places = _jobs(jobs)
    check_cells(wanted, cells, played[0])
    folder = Path("runs") / wanted.name / "sweep" if out is None else out
    with _claimed(folder, resume):
        shelf = Shelf.of(folder, cells, any_code=any_code)
        tasks = tasks_of(file, shelf, todo, played)
        _tell_of_other_code(shelf, cells, tasks)
        rows = _play(wanted, shelf, cells, tasks, places, talk)
        write_tables(folder, wanted, rows)
        draw_heatmaps(folder, wanted, rows)
        draw_sweep_curves(folder, wanted, cells, rows)
        _show(wanted, folder, rows)
    return _exit_code(rows, unsettled(wanted, rows))


def seed_list(text: str | None) -> tuple[int, ...] | None:
    """`0,1,4` as numbers.

    Raises:
        ConfigError: it is something else.
    """
    try:
        return None if text is None else tuple(int(part) for part in text.split(","))
    except ValueError:
        raise ConfigError(f"--seeds {text}: wanted numbers such as 0,1,4.") from None


def _seeds(every: Sequence[int], wanted: Sequence[int] | None) -> Sequence[int]:
    unknown = sorted(set(wanted or ()) - set(every))
    if unknown:
        raise ConfigError(f"--seeds: the file has no seed {unknown[0]}; it has {list(every)}.")
    return [seed for seed in every if wanted is None or seed in wanted]


def _jobs(jobs: int | None) -> int:
    """Never more than cores: runs that share one would only wait for each other."""
    if jobs is not None and jobs < 1:
        raise ConfigError(f"--jobs: wanted at least 1, found {jobs}.")
    return min(jobs or usable_cores(), usable_cores())


@contextmanager
def _claimed(folder: Path, resume: bool) -> Iterator[None]:
    """The folder, kept from other sweeps meanwhile."""
    state = folder / "sweep.json"
    if resume and not state.exists():
        raise CheckpointError(f"{folder}: holds no sweep to resume; start one without --resume.")
    if folder.exists() and not state.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"{folder}: holds something that is no sweep; give another folder by --out.")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder, os.O_RDONLY)
    except OSError as error:
        raise ConfigError(f"{folder}: cannot be the folder of a sweep: {error}.") from error
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        raise ConfigError(f"{folder}: another sweep is at work in this folder; wait for it.") from None
    except OSError:  # a file system without locks
        pass
    try:
        yield
    finally:
        os.close(handle)


def _tell_of_other_code(shelf: Shelf, cells: Sequence[Cell], tasks: Sequence[Task]) -> None:
    """One line on runs in the folder that changed code, or another folder's plugins, made."""
    if shelf.any_code:
        seeds = cells[0].experiment.seeds
        folders = {
            shelf.folder(one)
            for cell in cells
            for seed in seeds
            if shelf.is_foreign(one := cell.with_seed(seed))
        }
        line = f"runs made by other code: {len(folders)}, kept as asked"
    else:
        folders = {task.folder for task in tasks if task.anew}
        line = f"runs made by other code: {len(folders)}, played again; --any-code keeps them"
    if folders:
        Console(stderr=True, soft_wrap=True).print(f"fedsim: {line}.", highlight=False, markup=False)


def _play(
    wanted: Sweep, shelf: Shelf, cells: Sequence[Cell], tasks: Sequence[Task], places: int, talk: bool
) -> list[Row]:
    """All tasks; cells.jsonl tells at any time how the runs so far ended."""
    seeds, folder = cells[0].experiment.seeds, shelf.out
    rows = rows_of(shelf, cells, seeds)
    owners = [cell for cell in cells for _ in seeds]
    write_state(folder, wanted, rows)
    crew = _crew(min(places, max(1, len(tasks))), wanted.file)
    console = Console(stderr=True, quiet=not talk)
    try:
        with SweepProgress(console, len(tasks), crew.places) as progress, closing(crew):
            for task, ended in play_all(tasks, crew):
                progress.ended(task, ended)
                rows = [
                    renewed(shelf, cell, row, task, ended) for cell, row in zip(owners, rows, strict=True)
                ]
                write_rows(folder / "cells.jsonl", rows)
    finally:
        write_state(folder, wanted, rows)
    return rows


def _crew(places: int, file: Path) -> Crew:
    return Alone() if places == 1 else Children(places, (file.parent.resolve(), Path.cwd()))


def _show(wanted: Sweep, folder: Path, rows: Sequence[Row]) -> None:
    console = Console(width=None if sys.stdout.isatty() else 10_000)
    console.print(markdown(wanted, rows), soft_wrap=True, highlight=False, markup=False)
    for row in rows:
        if row.status in ("failed", "expectation_failed"):
            name = ", ".join(f"{axis}={label}" for axis, label in row.axes.items())
            line = f"fedsim: {name}, seed {row.seed}: {row.status}: {row.reason}"
            Console(stderr=True, soft_wrap=True).print(" ".join(line.split()), highlight=False, markup=False)
    for line in unsettled(wanted, rows):
        Console(stderr=True, soft_wrap=True).print(f"fedsim: {line}", highlight=False, markup=False)
    console.print(f"sweep directory {folder}", soft_wrap=True, highlight=False, markup=False)


def _exit_code(rows: Sequence[Row], unsettled: Sequence[str]) -> int:
    statuses = {row.status for row in rows}
    return 1 if "failed" in statuses or unsettled else 3 if "expectation_failed" in statuses else 0
