"""Statistics of timings: a ratio is formed within each repetition, so that a slow minute hits both sides."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median


@dataclass(frozen=True)
class Spread:
    """A number with its spread over repetitions."""

    median: float
    low: float
    high: float


def of_rounds(times: Sequence[Sequence[float]]) -> dict[str, float]:
    """Median, smallest and largest milliseconds of all timed rounds."""
    rounds = [one for repetition in times for one in repetition]
    return {"median": median(rounds), "min": min(rounds), "max": max(rounds)}


def ratio(slow: Sequence[Sequence[float]], fast: Sequence[Sequence[float]]) -> Spread:
    """How many times faster `fast` is: per repetition, the ratio of the medians of its rounds.

    Args:
        slow: milliseconds of each round, by repetition.
        fast: as many repetitions.
    """
    each = [median(a) / median(b) for a, b in zip(slow, fast, strict=True)]
    return Spread(median(each), min(each), max(each))


def fastest(times: Mapping[str, Sequence[Sequence[float]]], prefix: str) -> str | None:
    """The label with the lowest median among those that begin with `prefix`, or None."""
    known = [label for label in times if label == prefix or label.startswith(f"{prefix} ")]
    return min(known, key=lambda label: of_rounds(times[label])["median"], default=None)
