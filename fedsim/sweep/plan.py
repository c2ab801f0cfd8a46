"""What has to be played: a task for each run that is not finished, and for each clean run they share."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fedsim.config import Experiment
from fedsim.run.clean_twin import without_attack
from fedsim.sweep.cells import Cell
from fedsim.sweep.shelf import Shelf


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
        anew: forget what the folder holds: other code made it.
    """

    name: str
    file: Path
    experiment: Experiment
    folder: Path
    clean: Path | None = None
    is_clean: bool = False
    anew: bool = False

    @property
    def seed(self) -> int:
        """The only one."""
        return self.experiment.seeds[0]


def tasks_of(file: Path, shelf: Shelf, cells: Sequence[Cell], seeds: Sequence[int]) -> list[Task]:
    """Seed by seed, so that a whole table is there early; a clean run stands before the first that needs it.

    Cells with equal digests share one task; an honest cell shares that of the clean run beside the others.
    """
    tasks: dict[Path, Task] = {}
    for seed in seeds:
        for cell in cells:
            experiment = cell.with_seed(seed)
            folder = shelf.folder(experiment)
            if folder in tasks or shelf.is_finished(experiment):
                continue
            clean = _clean_task(file, shelf, experiment, cell)
            if clean is not None and not shelf.is_finished(clean.experiment):
                tasks.setdefault(clean.folder, clean)
            tasks[folder] = Task(
                f"{cell.name}, seed {seed}",
                file,
                experiment,
                folder,
                clean=None if clean is None else clean.folder,
                is_clean=shelf.is_clean(experiment),
                anew=shelf.is_stale(experiment),
            )
    return list(tasks.values())


def _clean_task(file: Path, shelf: Shelf, experiment: Experiment, cell: Cell) -> Task | None:
    honest = without_attack(experiment)
    if honest is None:
        return None
    name = f"clean run beside {cell.name}, seed {experiment.seeds[0]}"
    return Task(name, file, honest, shelf.folder(honest), is_clean=True, anew=shelf.is_stale(honest))
