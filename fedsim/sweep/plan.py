"""What has to be played: a task for each run that is not finished, and for each clean run they share."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fedsim.config import Experiment
from fedsim.errors import CheckpointError
from fedsim.run.clean_twin import without_attack
from fedsim.run.directory import RunDirectory
from fedsim.sweep.cells import Cell

DIGITS = 16  # of a digest, in a folder's name


@dataclass(frozen=True)
class Task:
    """One run of one seed.

    Attributes:
        name: for people.
        file: of the sweep.
        experiment: with this seed alone.
        folder: of the run.
        clean: folder of the clean run that must be there before; None where there is none.
        is_clean: is this such a clean run?
    """

    name: str
    file: Path
    experiment: Experiment
    folder: Path
    clean: Path | None = None
    is_clean: bool = False

    @property
    def seed(self) -> int:
        """The only one."""
        return self.experiment.seeds[0]


def run_folder(out: Path, experiment: Experiment, seed: int, kind: str = "runs") -> Path:
    """Where a run lives: under the digest of all that can touch its numbers."""
    return out / kind / experiment.digest()[:DIGITS] / f"seed-{seed}"


def is_finished(folder: Path, experiment: Experiment) -> bool:
    """Did this very run end, other than by failing?"""
    try:
        result = RunDirectory(folder).read_result()
    except (CheckpointError, OSError):
        return False
    return result is not None and result["status"] != "failed" and result["digest"] == experiment.digest()


def tasks_of(file: Path, out: Path, cells: Sequence[Cell], seeds: Sequence[int]) -> list[Task]:
    """Seed by seed, so that a whole table is there early; a clean run stands before the first that needs it.

    Cells with equal digests share one task.
    """
    tasks: dict[Path, Task] = {}
    for seed in seeds:
        for cell in cells:
            experiment = cell.with_seed(seed)
            folder = run_folder(out, experiment, seed)
            if folder in tasks or is_finished(folder, experiment):
                continue
            clean = _clean_task(file, out, experiment, cell)
            if clean is not None and not is_finished(clean.folder, clean.experiment):
                tasks.setdefault(clean.folder, clean)
            beside = None if clean is None else clean.folder
            tasks[folder] = Task(f"{cell.name}, seed {seed}", file, experiment, folder, beside)
    return list(tasks.values())


def _clean_task(file: Path, out: Path, experiment: Experiment, cell: Cell) -> Task | None:
    honest = without_attack(experiment)
    if honest is None:
        return None
    seed = experiment.seeds[0]
    name = f"clean run beside {cell.name}, seed {seed}"
    return Task(name, file, honest, run_folder(out, honest, seed, "clean"), is_clean=True)
