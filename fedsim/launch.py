"""`fedsim run`: from a file and its overrides to outcomes, pictures and tables."""

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console

from fedsim.config import Experiment, load
from fedsim.plugins import search_in
from fedsim.report.curves import draw_curves
from fedsim.report.outcome_tables import print_outcomes
from fedsim.report.progress import LiveProgress, PlainProgress
from fedsim.report.trackers import TRACKERS, Observers
from fedsim.run.atomic_files import finite
from fedsim.run.directory import RunDirectory, fresh_folder, latest_folder
from fedsim.run.outcome import Observer, Outcome, Silent
from fedsim.run.runner import run
from fedsim.run.summary import summary_of
from fedsim.run.transports import LocalTransport

PLAIN_WIDTH = 120  # columns, where the output is not a terminal


def launch(
    file: Path,
    overrides: Sequence[str],
    *,
    out: Path | None = None,
    resume: bool = False,
    talk: bool = True,
    as_json: bool = False,
) -> list[Outcome]:
    """Run all seeds of an experiment file and show what came out.

    Args:
        file: the experiment.
        overrides: `key.path=value` changes.
        out: folder of the run; None: `runs/NAME/TIME`.
        resume: go on with the run in `out`, or with the newest one.
        talk: show progress.
        as_json: print the results as JSON instead of tables.

    Raises:
        FedsimError: with exit code 2 for bad input.
    """
    search_in(file.parent, Path.cwd())
    experiment = load(file, overrides)
    folder = (
        latest_folder(experiment.name, len(experiment.seeds), out)
        if resume
        else fresh_folder(experiment.name, out)
    )
    trackers = [TRACKERS[name]() for name in experiment.track]
    console = Console(width=None if sys.stdout.isatty() else PLAIN_WIDTH)
    transport = LocalTransport(file.resolve(), tuple(overrides))
    try:
        with _observer(console, talk) as progress:
            observer = Observers([progress, *trackers])
            outcomes = run(experiment, folder, federation_of=transport, resume=resume, observer=observer)
    finally:
        if out is None:
            _remove_if_empty(folder)
    _draw(experiment, folder, outcomes)
    _show(console, experiment, folder, outcomes, as_json)
    return outcomes


@contextmanager
def _observer(console: Console, talk: bool) -> Iterator[Observer]:
    if not talk:
        yield Silent()
    elif console.is_terminal:
        with LiveProgress(console) as live:
            yield live
    else:
        yield PlainProgress(console)


def _remove_if_empty(folder: Path) -> None:
    """A run that was refused before its first round leaves none of `runs/NAME/TIME` behind."""
    for path in (folder, folder.parent, folder.parent.parent):
        if path.is_dir() and path.resolve() != Path.cwd() and not any(path.iterdir()):
            path.rmdir()


def _draw(experiment: Experiment, folder: Path, outcomes: Sequence[Outcome]) -> None:
    """Pictures of every seed that finished a round, and one of all seeds."""
    runs, window = [], experiment.attack.window if experiment.attack else None
    for outcome in outcomes:
        records = _records(outcome.folder)
        if records:
            runs.append(records)
            title = f"{experiment.name}, seed {outcome.seed}"
            draw_curves([records], outcome.folder / "curves.png", title, window)
    if len(outcomes) > 1 and runs:
        title = f"{experiment.name}, mean and range of {len(runs)} seeds"
        draw_curves(runs, folder / "curves.png", title, window)


def _records(folder: Path) -> list[dict[str, Any]]:
    lines = RunDirectory(folder).rounds.read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def _show(
    console: Console, experiment: Experiment, folder: Path, outcomes: Sequence[Outcome], as_json: bool
) -> None:
    results = [dict(outcome.result) for outcome in outcomes]
    summary = summary_of(experiment.name, results) if len(outcomes) > 1 else None
    if as_json:
        whole = {"folder": str(folder), "results": results, "summary": summary}
        console.out(json.dumps(finite(whole), indent=2, allow_nan=False, ensure_ascii=False), highlight=False)
        return
    print_outcomes(console, outcomes, summary)
    for outcome in outcomes:
        if outcome.exit_code:
            line = f"fedsim: seed {outcome.seed}: {outcome.status}: {outcome.result['reason']}"
            Console(stderr=True, soft_wrap=True).print(" ".join(line.split()), highlight=False, markup=False)
    console.print(f"run directory {folder}", soft_wrap=True, highlight=False, markup=False)
