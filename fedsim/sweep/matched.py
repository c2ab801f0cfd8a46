"""Lifespans count where the backdoor was there, and are compared where it was equally strong.

A run whose success at the stop is under one half has lived for 0 rounds by definition: it says that nothing
was implanted, not that it was soon forgotten. Such runs are in no mean of lifespans and in no pair, and are
counted beside them. Of the pairs those are left whose success at the stop is about the same.
"""

from fedsim.run.durability import HALF
from fedsim.sweep.collect import Row

AT_STOP = "attack_success.at_stop"


def is_lifespan(metric: str) -> bool:
    """Is it one of `attack_lifespan`?"""
    return metric.startswith("attack_lifespan.")


def not_implanted(row: Row, metric: str) -> bool:
    """Has a lifespan no meaning in this run?"""
    return is_lifespan(metric) and row.metrics.get(AT_STOP, 1.0) < HALF


def comparable(one: Row, other: Row, metric: str, within: float) -> bool:
    """May these two runs be compared by the metric?

    Args:
        one: a run.
        other: another of the same seed.
        metric: its path; all but lifespans may.
        within: by how much their success at the stop may differ.
    """
    if not is_lifespan(metric):
        return True
    if not_implanted(one, metric) or not_implanted(other, metric):
        return False
    gap = abs(one.metrics.get(AT_STOP, 0.0) - other.metrics.get(AT_STOP, 0.0))
    return gap <= within + 1e-12  # 0.9 - 0.8 is above 0.1 in binary
