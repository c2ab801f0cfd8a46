"""A plan's files, read: NumPy only, so that any peer's environment can."""

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Planned:
    """What `plan.write_plan` wrote.

    Attributes:
        folder: of the files; arrays are mapped into memory, not read.
    """

    folder: Path

    @cached_property
    def known(self) -> dict[str, Any]:
        return dict(json.loads((self.folder / "plan.json").read_text(encoding="utf-8")))

    @cached_property
    def arrays(self) -> dict[str, Any]:
        return {
            path.stem: np.load(path, mmap_mode="r")
            for path in sorted(self.folder.glob("*.npy"))
            if path.stem != "model"
        }

    @property
    def initial(self) -> Any:
        """[d], the first model."""
        return np.array(self.arrays["initial"])

    def tensors(self, vector: Any) -> dict[str, Any]:
        """The model by name, views of a vector [d]."""
        found, start = {}, 0
        for name, shape in self.known["tensors"]:
            size = int(np.prod(shape))
            found[name] = vector[start : start + size].reshape(shape)
            start += size
        return found

    def cohort(self, number: int) -> list[int]:
        """Who takes part in a round, which counts from 1."""
        return [int(client) for client in self.arrays["cohorts"][number - 1]]

    def rows(self, number: int, place: int) -> tuple[Any, Any]:
        """(x, y) of the client at a place of the cohort, normalised, in the order of its batches."""
        client = self.arrays["cohorts"][number - 1, place]
        order = self.arrays["orders"][number - 1, place]
        x = self.arrays["x"][client][order].astype(np.float32)
        mean, std = self.known["mean"], self.known["std"]
        return (x if (mean, std) == (0.0, 1.0) else (x - mean) / std), self.arrays["y"][client][order]

    def graph(self, client: int) -> tuple[Any, Any, Any]:
        """(x, y, edges) of a client; counted from its own first node."""
        start, stop = self.arrays["edge_ends"][client : client + 2]
        return tuple(
            np.array(array)
            for array in (
                self.arrays["x"][client],
                self.arrays["y"][client],
                self.arrays["edges"][:, start:stop],
            )
        )
