"""Statistics that merge: a mean is kept as (sum, count) until somebody reads it."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Sum:
    """A sum over `count` examples; adding two never forgets how many examples each stands for."""

    total: float
    count: float

    def __add__(self, other: "Sum") -> "Sum":
        return Sum(self.total + other.total, self.count + other.count)

    @property
    def mean(self) -> float | None:
        """Total / count, or None where nothing was counted."""
        return self.total / self.count if self.count else None


def merge(parts: Iterable[Mapping[str, Sum]]) -> dict[str, Sum]:
    """Add up statistics by name, in the order given."""
    merged: dict[str, Sum] = {}
    for part in parts:
        for name, value in part.items():
            merged[name] = merged[name] + value if name in merged else value
    return merged
