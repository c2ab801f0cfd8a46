"""How many features carry a mark, and which: Downer et al., ICML 2026, section "Watermark design"."""

import math

import torch
from torch import Tensor

from fedsim.errors import ConfigError

Z_TARGET = 4.753  # of the paper: 1 - Phi(z) = 1e-6


def number_of_marks(features: int, sets: int, z: float = Z_TARGET) -> int:
    """M: enough marks to lift an unlucky matching index over a lucky one, by the theoretical null.

    Args:
        features: F, all features of the data.
        sets: T, how many explanations must agree.
        z: how far above the null's mean the matching index shall lie, in standard deviations.

    Returns:
        ceil((t - LB) F / (F - t)), t = ceil(mu + z sigma), LB = mu - z sigma, but F at most.
    """
    chance = 2 * 0.5**sets
    mean, deviation = features * chance, math.sqrt(features * chance * (1 - chance))
    target = math.ceil(mean + z * deviation)
    if target >= features:
        return features
    return min(features, math.ceil((target - (mean - z * deviation)) * features / (features - target)))


def marked_features(x: Tensor, marks: int) -> Tensor:
    """The features that are non-zero at most nodes; of equal ones, the first.

    Args:
        x: [..., f], the features of all chosen nodes.
        marks: M.

    Returns:
        [M] int64, ascending.

    Raises:
        ConfigError: fewer than M features are ever non-zero.
    """
    counts = (x.flatten(0, -2) != 0).sum(dim=0)
    used = int((counts > 0).sum())
    if not 2 <= marks <= used:
        raise ConfigError(f"marks must be between 2 and {used}, the features in use, found {marks}.")
    order = counts.sort(descending=True, stable=True).indices
    return order[:marks].sort().values


def sign_counts(signs: Tensor) -> Tensor:
    """[t, f] of -1, 0, 1 -> [f, 2] int64: in how many sets each feature is positive, and negative."""
    return torch.stack([(signs > 0).sum(dim=0), (signs < 0).sum(dim=0)], dim=1)
