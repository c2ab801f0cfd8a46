"""How long a command takes on two idle cores, from times that were measured on such a machine."""

from collections.abc import Iterable, Sequence

from system import Contender
from workload import Variant

START = {"in-process": 3.0, "ray": 8.0, "flower": 10.0, "pfl": 4.0, "fedjax": 4.0, "loop": 3.0}  # seconds
PREPARE, DISMISS = 3.0, 0.7  # seconds of a variant, of a system
ROUND_MS: dict[str, dict[str, float]] = {
    "W1": {"T0": 50, "T1": 22, "T2": 5, "flower": 484, "pfl": 60, "fedjax": 25, "loop": 29},
    "W2": {"T0": 2000, "T1": 1500, "T2": 5000, "flower": 3140, "pfl": 2500, "fedjax": 2570, "loop": 2900},
    "W3 10": {"T1": 12, "T2": 6, "flower": 203, "loop": 20},
    "W3 100": {"T1": 120, "T2": 60, "flower": 938, "loop": 200},
    "W4": {"T0": 744, "T1": 125, "T2": 125, "flower": 4170, "pfl": 250, "fedjax": 250, "loop": 125},
}
FLOWER_FLOOR = 200.0  # ms: its sleeps


def minutes(groups: Iterable[Sequence[tuple[Variant, Sequence[Contender]]]]) -> float:
    """Of preparing, starting and playing all systems."""
    seconds = 0.0
    for variant, contenders in (one for group in groups for one in group):
        seconds += PREPARE
        for contender in contenders:
            kind = _kind(contender)
            start = START[contender.engine.get("backend", kind)]
            seconds += start + DISMISS + variant.length * _round_ms(variant, kind) / 1000
    return seconds / 60


def _kind(contender: Contender) -> str:
    return contender.tier or contender.label.split()[0]


def _round_ms(variant: Variant, kind: str) -> float:
    """A series is scaled from its workload; W5 is W1 with more clients registered."""
    known, factor = variant.name.rpartition(" ")[0] or variant.name, 1.0
    if "clients" in variant.shown:
        known, factor = "W1", variant.shown["clients"] / 100
    elif "parameters" in variant.shown:
        known, factor = "W4", variant.shown["parameters"] / 10_000_000
    known = "W1" if known == "W5" else known
    found = ROUND_MS[known][kind] * factor
    return max(found, FLOWER_FLOOR) if kind == "flower" else found
