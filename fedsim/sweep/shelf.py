"""Where the runs of a sweep lie, and which of them count as played."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from fedsim.config import Experiment
from fedsim.errors import CheckpointError
from fedsim.run.clean_twin import is_honest, without_attack
from fedsim.run.code import code_digest, own_digest
from fedsim.run.directory import RunDirectory
from fedsim.sweep.cells import Cell

DIGITS = 16  # of a digest, in a folder's name


@dataclass(frozen=True)
class Shelf:
    """A sweep's folder.

    Attributes:
        out: the folder.
        clean: digests of the clean runs that stand beside cells under attack; an honest cell that is one of
            them is not played again.
        any_code: a finished run counts whatever code made it.
    """

    out: Path
    clean: frozenset[str] = frozenset()
    any_code: bool = False

    @classmethod
    def of(cls, out: Path, cells: Sequence[Cell], *, any_code: bool = False) -> "Shelf":
        """For all cells of a sweep."""
        honest = [without_attack(cell.experiment) for cell in cells]
        return cls(out, frozenset(one.digest() for one in honest if one is not None), any_code)

    def folder(self, experiment: Experiment) -> Path:
        """Of a run of one seed: under the digest of all that can touch its numbers."""
        kind = "clean" if self.is_clean(experiment) else "runs"
        return self.out / kind / experiment.digest()[:DIGITS] / f"seed-{experiment.seeds[0]}"

    def is_clean(self, experiment: Experiment) -> bool:
        """Is it a run beside which attacks are measured?"""
        return is_honest(experiment) and experiment.digest() in self.clean

    def result(self, experiment: Experiment) -> dict[str, Any] | None:
        """How this very run ended; None where it has not, and where other code made it."""
        directory = RunDirectory(self.folder(experiment))
        try:
            result = directory.read_result()
        except (CheckpointError, OSError):
            return None
        if result is None or result["digest"] != experiment.digest():
            return None
        return None if self.is_stale(experiment) else result

    def is_finished(self, experiment: Experiment) -> bool:
        """Did it end, other than by failing?"""
        result = self.result(experiment)
        return result is not None and result["status"] != "failed"

    def is_stale(self, experiment: Experiment) -> bool:
        """Was it begun by other code, so that it has to begin anew?"""
        return not self.any_code and self.is_foreign(experiment)

    def is_foreign(self, experiment: Experiment) -> bool:
        """Did other code begin it?"""
        directory = RunDirectory(self.folder(experiment))
        if not (directory.path / "manifest.json").exists():
            return False
        return directory.read_code() != code_digest(experiment, now=self._now)

    @cached_property
    def _now(self) -> str:
        return own_digest()
