"""Label skew without quantity skew: clients draw class proportions of their own and have equally many items.

In the manner of Hsu, Qi and Brown, "Measuring the Effects of Non-Identical Data Distribution for Federated
Visual Classification", 2019, section 2, with a symmetric Dirichlet over classes. Where a class runs out, a
client's open places go to the classes that are left, in its own proportions.
"""

from dataclasses import dataclass

import numpy as np

from fedsim.data.partition import dirichlet, enough
from fedsim.data.pool import Integers, Items
from fedsim.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class EqualDirichlet:
    """Parts whose sizes differ by at most one.

    Attributes:
        alpha: concentration of each class; small: few classes per client.
    """

    alpha: float

    def __post_init__(self) -> None:
        if not 0 < self.alpha < float("inf"):
            raise ConfigError(f"alpha must be above 0 and finite, found {self.alpha}.")

    def divide(self, items: Items, clients: int, rng: np.random.Generator) -> list[Integers]:
        """See `fedsim.data.pool.Partition`."""
        enough("equal_dirichlet", len(items), clients, each=1)
        decks = [rng.permutation(np.flatnonzero(items.labels == label)) for label in np.unique(items.labels)]
        sizes = [len(part) for part in np.array_split(np.empty(len(items)), clients)]
        return [_hand(decks, dirichlet(self.alpha, len(decks), rng), size, rng) for size in sizes]


def _hand(decks: list[Integers], shares: np.ndarray, size: int, rng: np.random.Generator) -> Integers:
    """`size` items from the tops of the decks, which lose them."""
    taken = []
    while size:
        left = np.array([len(deck) for deck in decks])
        open_shares = np.where(left > 0, shares, 0.0)
        if not open_shares.sum() > 0:
            open_shares = left.astype(float)
        counts = np.minimum(rng.multinomial(size, open_shares / open_shares.sum()), left)
        for label, count in enumerate(counts):
            taken.append(decks[label][:count])
            decks[label] = decks[label][count:]
        size -= int(counts.sum())
    return np.concatenate(taken)
