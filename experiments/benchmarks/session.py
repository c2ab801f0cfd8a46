"""Plays variants: all their systems side by side, one repetition after the other."""

import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from goals import AGREEMENT, FINAL_AGREEMENT
from plan import write_plan
from spread import of_rounds
from system import PATIENCE, Contender, MissingSystem, System
from workload import Variant

Times = dict[tuple[str, str], list[list[float]]]  # (variant, label) -> repetitions -> ms of each round


@dataclass(frozen=True)
class Played:
    """What a session found.

    Attributes:
        rows: one per system and variant, JSON values.
        times: of those that played to the end.
    """

    rows: list[dict[str, Any]]
    times: Times


@dataclass(frozen=True)
class _Seat:
    variant: Variant
    contender: Contender


def play(
    chosen: Sequence[tuple[Variant, Sequence[Contender]]],
    say: Callable[[str], None],
    patience: float = PATIENCE,
) -> Played:
    """All systems of some variants, interleaved; a system that is missing becomes a row that says why."""
    seats = [_Seat(variant, one) for variant, contenders in chosen for one in contenders]
    with tempfile.TemporaryDirectory(prefix="fedsim-benchmark-") as folder, ExitStack() as stack:
        work, running, missing = Path(folder), {}, {}
        for number, (variant, _) in enumerate(chosen):
            say(f"{variant.name}: preparing data, first model, cohorts and batches")
            write_plan(variant, work / f"plan-{number}")
        plans = {variant.name: work / f"plan-{number}" for number, (variant, _) in enumerate(chosen)}
        for number, seat in enumerate(seats):
            say(f"{seat.variant.name}: starting {seat.contender.label}")
            plan, own = plans[seat.variant.name], work / f"system-{number}"
            try:
                running[number] = System(seat.contender, seat.variant, plan, own, patience)
                stack.callback(running[number].close)
            except MissingSystem as error:
                missing[number] = str(error)
        early = _repeat(seats, running, missing, say)
        models = _models(running, missing)
        for system in running.values():
            system.dismiss()
        rows = [_row(seats, n, running.get(n), missing.get(n), (early, models)) for n in range(len(seats))]
        times = {
            (seats[n].variant.name, seats[n].contender.label): system.times for n, system in running.items()
        }
    return Played(rows, times)


def _repeat(
    seats: Sequence[_Seat], running: dict[int, System], missing: dict[int, str], say: Callable[[str], None]
) -> dict[int, Any]:
    """All repetitions; the models before them, after the round that every system plays as it starts."""
    early = _models(running, missing)
    last = max((seat.variant.repetitions for seat in seats), default=0)
    for repetition in range(last):
        say(f"repetition {repetition + 1} of {last}")
        for number in list(running):
            variant = seats[number].variant
            try:
                running[number].rounds(variant.rounds)
            except MissingSystem as error:
                missing[number] = str(error)
                running.pop(number).kill()
    return early


def _models(running: dict[int, System], missing: dict[int, str]) -> dict[int, Any]:
    found = {}
    for number in list(running):
        try:
            found[number] = running[number].model()
        except MissingSystem as error:
            missing[number] = str(error)
            running.pop(number).kill()
    return found


def _row(
    seats: Sequence[_Seat],
    number: int,
    system: System | None,
    missing: str | None,
    models: tuple[dict[int, Any], dict[int, Any]],
) -> dict[str, Any]:
    variant, contender = seats[number].variant, seats[number].contender
    row = {
        "workload": variant.name,
        "system": "fedsim" if contender.tier else contender.label,
        "label": contender.label,
        "tier": contender.tier,
        **{key: contender.engine[key] for key in ("backend", "workers") if key in contender.engine},
        **variant.shown,
    }
    if system is None:
        return row | {"missing": missing}
    reference = _reference(seats, variant, models[1])
    apart, finally_apart = (distance(found[number], found[reference]) for found in models)
    return row | {
        "ms_per_round": of_rounds(system.times),
        "first_round_ms": system.first_round,
        "startup_s": system.startup,
        "peak_mb": system.peak,
        "rounds": sum(map(len, system.times)),
        "model_distance": apart,
        "final_distance": finally_apart,
        "model_agrees": apart < AGREEMENT and finally_apart < FINAL_AGREEMENT,
        "compared_with": seats[reference].contender.label,
    }


def _reference(seats: Sequence[_Seat], variant: Variant, models: dict[int, Any]) -> int:
    """The plain loop's model, or the first that there is."""
    same = [number for number in models if seats[number].variant is variant]
    return next((number for number in same if seats[number].contender.label == "loop"), same[0])


def distance(model: Any, reference: Any) -> float:
    """|a - b| / |b| in float64."""
    a, b = model.astype(np.float64), reference.astype(np.float64)
    return float(np.linalg.norm(a - b) / np.linalg.norm(b))
