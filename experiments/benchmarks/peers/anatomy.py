"""fedsim under a profiler: the rounds of `peers.ours` in this process, a few plain, a few profiled.

Own time of a function of ours belongs to the stage of its module; time in torch and Python to the stage of
those that called it, in proportion. Prints one JSON line.
"""

import cProfile
import json
import pstats
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from peers import ours

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
STAGES = (  # the first that fits, by the beginning of a module's path in the repository
    ("draw", ("fedsim/run/cohort", "fedsim/rng")),
    ("gather", ("fedsim/training/batches", "fedsim/training/stacked_batches", "fedsim/data/")),
    (
        "forward, backward",
        (
            "clients/",
            "fedsim/training/functional",
            "fedsim/training/gradients",
            "fedsim/training/losses",
            "fedsim/training/over_clients",
            "fedsim/training/stacked_gradients",
            "fedsim/training/stacked_noise",
        ),
    ),
    (
        "optimiser",
        ("fedsim/training/optimizers", "fedsim/training/stacked_lists", "fedsim/training/transforms"),
    ),
    ("rule", ("strategies/", "fedsim/run/decision", "fedsim/run/replies", "fedsim/run/server_side")),
    (
        "record",
        ("fedsim/run/directory", "fedsim/run/atomic_files", "fedsim/run/round_loop", "fedsim/metrics"),
    ),
    ("transport", ("fedsim/engine/", "fedsim/run/engine_federation", "fedsim/flower/")),
    ("the app", ("experiments/benchmarks/",)),
    ("bookkeeping", ("fedsim/",)),
)
HOTTEST = 6
Function = tuple[str, int, str]


class Anatomist:
    """In the conductor's place: one round to warm up, some plain, some under the profiler."""

    def __init__(self, rounds: int) -> None:
        self._number, self._rounds, self._begun = 0, rounds, 0.0
        self.plain: list[float] = []
        self.profiled: list[float] = []
        self.profile = cProfile.Profile()
        self.vector: Callable[[], Any] = lambda: np.zeros(0)

    def wants_round(self) -> bool:
        """Whether one is left; the clock starts here."""
        self._number += 1
        if self._number > 1 + 2 * self._rounds:
            return False
        self._begun = time.perf_counter()
        if self._number > 1 + self._rounds:
            self.profile.enable()
        return True

    def round_done(self) -> None:
        """The clock stops here."""
        self.profile.disable()
        taken = 1000 * (time.perf_counter() - self._begun)
        if self._number > 1:
            (self.plain if self._number <= 1 + self._rounds else self.profiled).append(taken)


def stage_of(function: Function) -> str | None:
    """Of a function of this repository; None of others."""
    path = Path(function[0])
    if not path.is_absolute() or not path.is_relative_to(ROOT):
        return None
    place = path.relative_to(ROOT).as_posix()
    return next((stage for stage, begins in STAGES if place.startswith(begins)), None)


def shares(stats: Mapping[Function, Any]) -> dict[str, float]:
    """Seconds by stage; `stats` as in `pstats.Stats`."""
    found: defaultdict[str, float] = defaultdict(float)
    known: dict[Function, dict[str, float]] = {}

    def owners(function: Function, weight: int, above: frozenset[Function]) -> dict[str, float]:
        """Stages that a function works for, adding up to 1; by own time of its calls (2) or all of it (3)."""
        stage = stage_of(function)
        if stage is not None:
            return {stage: 1.0}
        if function in known:
            return known[function]
        calls = {one: call[weight] for one, call in stats[function][4].items() if one not in above}
        total, split = sum(calls.values()), defaultdict[str, float](float)
        for caller, seconds in calls.items():
            if total and seconds:
                for name, share in owners(caller, 3, above | {function}).items():
                    split[name] += share * seconds / total
        if weight == 3 and not above - {function}:
            known[function] = split
        return split or {"elsewhere": 1.0}

    for function, (_, _, own, _, _) in stats.items():
        for stage, share in owners(function, 2, frozenset()).items():
            found[stage] += own * share
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def hottest(stats: Mapping[Function, Any]) -> dict[str, float]:
    """Own seconds of the functions that take most."""
    found: defaultdict[str, float] = defaultdict(float)
    for (path, _, name), (_, _, own, _, _) in stats.items():
        found[
            name.strip("<>").removeprefix("built-in method ") if path == "~" else f"{Path(path).stem}.{name}"
        ] += own
    return dict(sorted(found.items(), key=lambda item: -item[1])[:HOTTEST])


def main(folder: Path, asked: dict[str, Any], rounds: int) -> None:
    """Prints milliseconds, shares of stages, and the functions that take most."""
    seen = Anatomist(rounds)
    ours.main(folder, asked, seen)
    stats: Any = pstats.Stats(seen.profile).stats  # type: ignore[attr-defined]
    total = sum(entry[2] for entry in stats.values())
    report = {
        "plain_ms": float(np.median(seen.plain)),
        "profiled_ms": float(np.median(seen.profiled)),
        "stages": {name: seconds / total for name, seconds in shares(stats).items()},
        "hottest": {name: seconds / total for name, seconds in hottest(stats).items()},
    }
    print(json.dumps(report), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]), int(sys.argv[3]))
