"""Learning rates over rounds: a factor per round that multiplies an optimiser's learning rate.

Rounds count from 1 and every schedule starts at factor 1. The formulas are those of torch's schedulers
of the same name, stepped once per round.
"""

import math
from dataclasses import dataclass
from typing import Protocol

from fedsim.errors import ConfigError


class Schedule(Protocol):
    """A frozen description of how the learning rate changes over rounds."""

    def factor(self, round: int) -> float:
        """What the learning rate is multiplied by in this round; rounds count from 1."""
        ...


@dataclass(frozen=True, kw_only=True)
class Constant:
    """The same learning rate in every round."""

    def factor(self, round: int) -> float:
        """Always 1."""
        return 1.0


@dataclass(frozen=True, kw_only=True)
class Cosine:
    """Half a cosine from 1 towards `final`, which a round after the last would reach.

    Attributes:
        rounds: of the run.
        final: in [0, 1].
    """

    rounds: int
    final: float = 0.0

    def __post_init__(self) -> None:
        """Refuse values outside the ranges above."""
        if self.rounds < 1:
            raise ConfigError(f"rounds must be at least 1, found {self.rounds}.")
        if not 0 <= self.final <= 1:
            raise ConfigError(f"final must be between 0 and 1, found {self.final}.")

    def factor(self, round: int) -> float:
        """Final + (1 - final) (1 + cos(pi (round - 1) / rounds)) / 2; the last value holds from then on."""
        progress = (min(round, self.rounds) - 1) / self.rounds
        return self.final + (1 - self.final) * (1 + math.cos(math.pi * progress)) / 2


@dataclass(frozen=True, kw_only=True)
class StepDecay:
    """Multiply by `decay` after every `every` rounds.

    Attributes:
        every: rounds between two drops.
        decay: in (0, 1].
    """

    every: int
    decay: float = 0.1

    def __post_init__(self) -> None:
        """Refuse values outside the ranges above."""
        if self.every < 1:
            raise ConfigError(f"every must be at least 1, found {self.every}.")
        _check_decay(self.decay)

    def factor(self, round: int) -> float:
        """Decay to the number of drops before this round."""
        return float(self.decay ** ((round - 1) // self.every))


@dataclass(frozen=True, kw_only=True)
class Exponential:
    """Multiply by `decay`, in (0, 1], after every round."""

    decay: float

    def __post_init__(self) -> None:
        """Refuse a decay outside (0, 1]."""
        _check_decay(self.decay)

    def factor(self, round: int) -> float:
        """Decay ** (round - 1)."""
        return float(self.decay ** (round - 1))


def _check_decay(value: float) -> None:
    if not 0 < value <= 1:
        raise ConfigError(f"decay must be above 0 and at most 1, found {value}.")
