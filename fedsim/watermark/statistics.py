"""What the signs of a suspect's explanations prove: matches with a key, and the paper's matching index.

t sets, f features, m marked features, all signs in {-1, 0, 1}.

The verdict rests on the matches with the key. Its p-value is exact: sets, features and answers stay as
they are, and the key is drawn anew, uniformly among all keys with as many +1. That assumes only that
the key was drawn independently of everything else, which its commitment shows.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedsim.watermark.marks import sign_counts


@dataclass(frozen=True)
class KeyMatch:
    """Positions of t sets whose sign is the key's.

    Attributes:
        matches: of t m positions; zeros match nothing.
        positions: t m.
        mean: of the matches over re-drawn keys.
        deviation: their standard deviation.
        p: share of re-drawn keys with as many matches or more; exact.
    """

    matches: int
    positions: int
    mean: float
    deviation: float
    p: float

    @property
    def z(self) -> float:
        """(matches - mean) / deviation; 0 where every key matches alike."""
        return (self.matches - self.mean) / self.deviation if self.deviation else 0.0


@dataclass(frozen=True)
class MatchingIndex:
    """The paper's statistic: features with one and the same non-zero sign in all t sets.

    Attributes:
        index: MI, over all features.
        mean: of MI over random tuples of other sets, on the same model.
        deviation: their standard deviation (sample).
        rank_p: (1 + tuples that reach the index) / (1 + tuples).
        null: [tuples] int64, the index of each.
    """

    index: int
    mean: float
    deviation: float
    rank_p: float
    null: Tensor

    @property
    def z(self) -> float:
        """(MI - mean) / deviation; infinite, or 0, where all tuples are alike."""
        if self.deviation:
            return (self.index - self.mean) / self.deviation
        return math.copysign(math.inf, self.index - self.mean) if self.index != self.mean else 0.0

    @property
    def p(self) -> float:
        """The upper tail of a normal with the null's moments: an extrapolation below 1 / tuples."""
        return 0.5 * math.erfc(self.z / math.sqrt(2))


def key_match(signs: Tensor, key: Tensor) -> KeyMatch:
    """The matches of a key with explanations.

    Args:
        signs: [t, m] at the marked features.
        key: [m] of -1 and 1.
    """
    matches = int((signs == key).sum())
    distribution, lowest = null_of_matches(signs, int((key > 0).sum()))
    values = lowest + np.arange(len(distribution))
    mean = float(distribution @ values)
    deviation = math.sqrt(max(0.0, float(distribution @ (values - mean) ** 2)))
    tail = float(distribution[matches - lowest :].sum())
    return KeyMatch(matches, signs.numel(), mean, deviation, min(1.0, tail))


def null_of_matches(signs: Tensor, positive: int) -> tuple[np.ndarray[Any, Any], int]:
    """([k] probabilities of lowest, lowest + 1, ... matches, lowest) for a key drawn at random.

    Features are dealt +1 or -1 one after the other, as cards from a deck of `positive` and m - positive.
    A state is (how many +1 so far, matches so far). All terms are positive: no digit is lost, however
    small the probability.

    Args:
        signs: [t, m].
        positive: how many entries of a key are +1.
    """
    counts = sign_counts(signs)
    gains = (counts[:, 0] - counts[:, 1]).tolist()  # what a +1 wins over a -1
    base = int(counts[:, 1].sum())
    lift = [min(gain, 0) for gain in gains]
    span = sum(abs(gain) for gain in gains)
    state = np.zeros((positive + 1, span + 1))
    state[0, 0] = 1.0
    dealt, reach = np.arange(positive + 1), 0
    for step, gain in enumerate(gains):
        left = len(gains) - step
        plus = np.clip((positive - dealt) / left, 0.0, 1.0)[:, None]
        up, down = max(gain, 0), max(-gain, 0)
        before = state[:, : reach + 1].copy()
        reach += up + down
        state[:, : reach + 1] = 0.0
        state[:, down : down + before.shape[1]] += before * (1.0 - plus)
        state[1:, up : up + before.shape[1]] += (before * plus)[:-1]
    return state[positive], base + sum(lift)


def least_p(marks: int, positive: int) -> float:
    """The smallest p-value that any model could reach: one key out of all."""
    return 1.0 / math.comb(marks, positive)


def matching_index(signs: Tensor) -> int:
    """MI of [t, f] signs."""
    return int(matching_indices(signs.unsqueeze(0))[0])


def matching_indices(signs: Tensor) -> Tensor:
    """[k, t, f] signs -> [k] int64."""
    first = signs[:, 0]
    return ((first != 0) & (signs == first.unsqueeze(1)).all(dim=1)).sum(dim=1)


def null_of_index(signs: Tensor, sets: int, tuples: int, rng: torch.Generator) -> Tensor:
    """MI of random tuples of different sets.

    Args:
        signs: [s, f], of s sets that carry no mark.
        sets: t, at most s.
        tuples: how many to draw.
        rng: draws them.

    Returns:
        [tuples] int64.
    """
    small = signs.to(torch.int8)
    drawn = torch.stack([torch.randperm(len(signs), generator=rng)[:sets] for _ in range(tuples)])
    return torch.cat([matching_indices(small[part]) for part in torch.split(drawn, 100)])


def judged_index(index: int, null: Tensor) -> MatchingIndex:
    """An index beside its null."""
    values = null.double()
    rank = (1 + int((null >= index).sum())) / (1 + len(null))
    return MatchingIndex(index, float(values.mean()), float(values.std()), rank, null)
