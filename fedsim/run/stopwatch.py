"""Where the time of a run goes, by name."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

PHASES = ("train", "serialise", "wait", "aggregate", "evaluate", "attack")


class Stopwatch:
    """Seconds by phase, added up until they are taken."""

    def __init__(self) -> None:
        self._seconds = dict.fromkeys(PHASES, 0.0)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Count the time inside to a phase, also where it raises."""
        begun = time.perf_counter()
        try:
            yield
        finally:
            self._seconds[name] += time.perf_counter() - begun

    def move(self, source: str, target: str, seconds: float) -> None:
        """Count seconds to another phase, at most as many as the source has."""
        moved = max(0.0, min(seconds, self._seconds[source]))
        self._seconds[source] -= moved
        self._seconds[target] += moved

    def take(self) -> dict[str, float]:
        """The seconds so far, rounded to microseconds; start again at zero."""
        taken = {name: round(seconds, 6) for name, seconds in self._seconds.items()}
        self._seconds = dict.fromkeys(PHASES, 0.0)
        return taken
