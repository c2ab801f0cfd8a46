"""Partitions that need no graph: iid, Dirichlet, shards, quantity skew, natural ids, one set per client.

They are written here rather than taken from flwr-datasets because its partitioners wrap a Hugging Face
`Dataset` with a label column (nodes and graphs have none), and its Dirichlet partitioner warns at every
redraw, gives up after ten, and was reported to divide by zero (flower #4377). All parts are exact: every
item is assigned once, and the same generator gives the same parts.
"""

from dataclasses import dataclass

import numpy as np

from fedsim.data.pool import Integers, Items
from fedsim.data.split import apportion
from fedsim.errors import ConfigError, DataError

_DRAWS = 200  # of a whole Dirichlet partition, before it is called impossible
_WORK = 5_000_000  # proportions drawn in all, a few seconds
_LARGEST_ALPHA = 1e9  # beyond it a Dirichlet is iid to float64 precision


@dataclass(frozen=True, kw_only=True)
class Iid:
    """A random deal; sizes differ by at most one."""

    def divide(self, items: Items, clients: int, rng: np.random.Generator) -> list[Integers]:
        """See `fedsim.data.pool.Partition`."""
        enough("iid", len(items), clients, each=1)
        return np.array_split(rng.permutation(len(items)), clients)


@dataclass(frozen=True, kw_only=True)
class Dirichlet:
    """Each class is divided in proportions drawn from a symmetric Dirichlet (Yurochkin et al. 2019).

    Attributes:
        alpha: concentration; small: few classes per client, large: close to iid.
        min_samples: the whole partition is drawn again until every client has this many.
        top_up: where the draws fail, move single items of the largest clients to those below `min_samples`.
    """

    alpha: float
    min_samples: int = 10
    top_up: bool = False

    def __post_init__(self) -> None:
        check_alpha(self.alpha)
        if self.min_samples < 1:
            raise ConfigError(f"min_samples must be at least 1, found {self.min_samples}.")

    def divide(self, items: Items, clients: int, rng: np.random.Generator) -> list[Integers]:
        """See `fedsim.data.pool.Partition`."""
        enough("dirichlet", len(items), clients, each=self.min_samples)
        best = 0
        draws = int(np.clip(_WORK // (clients * len(np.unique(items.labels))), 3, _DRAWS))
        for _ in range(draws):
            counts = self._counts(items.labels, clients, rng)
            smallest = int(counts.sum(axis=0).min())
            if smallest >= self.min_samples:
                return _deal_by_class(items.labels, counts, rng)
            best = max(best, smallest)
        if self.top_up:
            return _deal_by_class(items.labels, _topped_up(counts, self.min_samples), rng)
        raise DataError(
            f"federation.partition: dirichlet with alpha = {self.alpha} found no division of {len(items)} "
            f"items among {clients} clients with at least {self.min_samples} each in {draws} draws "
            f"(best: {best}): lower federation.partition.min_samples, set top_up = true, raise alpha, or "
            "take fewer clients."
        )

    def _counts(self, labels: Integers, clients: int, rng: np.random.Generator) -> Integers:
        """[classes, clients]: how many items of each class go to each client."""
        sizes = np.unique(labels, return_counts=True)[1]
        return np.stack([apportion(size, dirichlet(self.alpha, clients, rng)) for size in sizes])


@dataclass(frozen=True, kw_only=True)
class Shards:
    """Items sorted by label, cut into equal shards, dealt at random (McMahan et al. 2017, section 3).

    Attributes:
        shards_per_client: about as many classes does a client see.
    """

    shards_per_client: int = 2

    def __post_init__(self) -> None:
        if self.shards_per_client < 1:
            raise ConfigError(f"shards_per_client must be at least 1, found {self.shards_per_client}.")

    def divide(self, items: Items, clients: int, rng: np.random.Generator) -> list[Integers]:
        """See `fedsim.data.pool.Partition`."""
        enough("shards", len(items), clients, each=self.shards_per_client)
        order = rng.permutation(len(items))
        order = order[np.argsort(items.labels[order], kind="stable")]
        shards = np.array_split(order, clients * self.shards_per_client)
        hands = rng.permutation(len(shards)).reshape(clients, self.shards_per_client)
        return [np.concatenate([shards[number] for number in hand]) for hand in hands]


@dataclass(frozen=True, kw_only=True)
class Quantity:
    """Sizes in proportions drawn from a symmetric Dirichlet, labels iid (Li et al. 2022, quantity skew).

    Attributes:
        alpha: concentration; small: few clients own almost everything.
        min_samples: every client gets this many before the rest is divided.
    """

    alpha: float = 1.0
    min_samples: int = 10

    def __post_init__(self) -> None:
        check_alpha(self.alpha)
        if self.min_samples < 1:
            raise ConfigError(f"min_samples must be at least 1, found {self.min_samples}.")

    def divide(self, items: Items, clients: int, rng: np.random.Generator) -> list[Integers]:
        """See `fedsim.data.pool.Partition`."""
        enough("quantity", len(items), clients, each=self.min_samples)
        spare = len(items) - clients * self.min_samples
        sizes = self.min_samples + apportion(spare, dirichlet(self.alpha, clients, rng))
        return np.split(rng.permutation(len(items)), np.cumsum(sizes)[:-1])


@dataclass(frozen=True, kw_only=True)
class Natural:
    """By the ids that the data carries (`data.id_column`): whole ids, as evenly as they allow.

    With as many ids as clients, client k holds the k-th id. More ids than clients are packed, the largest
    first into the client that holds least.
    """

    def divide(self, items: Items, clients: int, rng: np.random.Generator) -> list[Integers]:
        """See `fedsim.data.pool.Partition`."""
        if items.ids is None:
            raise DataError("federation.partition: natural needs ids: name their column in data.id_column.")
        groups = [np.flatnonzero(items.ids == number) for number in np.unique(items.ids)]
        if len(groups) < clients:
            raise DataError(
                f"federation.partition: natural found {len(groups)} ids for {clients} clients: "
                f"set federation.clients to {len(groups)} or less."
            )
        return groups if len(groups) == clients else packed(groups, clients)


@dataclass(frozen=True, kw_only=True)
class PerDataset:
    """Each data set belongs to its own clients; several clients of one set share it iid."""

    def divide(self, items: Items, clients: int, rng: np.random.Generator) -> list[Integers]:
        """See `fedsim.data.pool.Partition`."""
        sets = np.unique(items.dataset)
        if clients % len(sets):
            raise DataError(
                f"federation.partition: per_dataset gives {len(sets)} data sets to equally many clients "
                f"each: federation.clients must be a multiple of {len(sets)}, found {clients}."
            )
        each, parts = clients // len(sets), []
        for number in sets:
            members = np.flatnonzero(items.dataset == number)
            enough("per_dataset", len(members), each, each=1)
            parts += np.array_split(members if each == 1 else rng.permutation(members), each)
        return parts


def dirichlet(alpha: float, size: int, rng: np.random.Generator) -> np.ndarray:
    """[size] proportions of a symmetric Dirichlet, for every alpha in (0, 1e9] without underflow.

    A gamma variable of shape alpha is one of shape alpha + 1 times u^(1 / alpha) (Marsaglia and Tsang 2000,
    section 6). Logarithms times alpha stay finite, and the largest becomes exactly 1 before the sum.
    """
    gamma = rng.standard_gamma(alpha + 1.0, size)
    uniform = 1.0 - rng.random(size)  # (0, 1], so that the logarithm is finite
    scaled = alpha * np.log(gamma) + np.log(uniform)
    with np.errstate(under="ignore", over="ignore"):  # a proportion that small is 0
        weights = np.exp((scaled - scaled.max()) / alpha)
    return np.asarray(weights / weights.sum())


def packed(groups: list[Integers], clients: int) -> list[Integers]:
    """Whole groups in `clients` parts: the largest first, each into the part that holds least."""
    parts: list[list[Integers]] = [[] for _ in range(clients)]
    sizes = np.zeros(clients, dtype=np.int64)
    for group in sorted(groups, key=len, reverse=True):
        smallest = int(sizes.argmin())
        parts[smallest].append(group)
        sizes[smallest] += len(group)
    return [np.concatenate(part) for part in parts]


def enough(partition: str, items: int, clients: int, each: int) -> None:
    """Refuse a partition that cannot give every client `each` items.

    Raises:
        DataError: items < clients * each.
    """
    if items < clients * each:
        raise DataError(
            f"federation.partition: {partition} cannot give {each} or more of {items} items to each of "
            f"{clients} clients: take fewer clients, ask for less per client, or take a larger data set."
        )


def check_alpha(alpha: float) -> None:
    """Refuse a concentration outside (0, 1e9].

    Raises:
        ConfigError: also for nan.
    """
    if not 0.0 < alpha <= _LARGEST_ALPHA:
        raise ConfigError(f"alpha must be above 0 and at most 1e9 (then use iid), found {alpha}.")


def _topped_up(counts: Integers, smallest: int) -> Integers:
    """[classes, clients] with `smallest` or more per client: the largest gives of its largest class."""
    counts = counts.copy()
    sizes = counts.sum(axis=0)
    for poor in np.flatnonzero(sizes < smallest):
        while sizes[poor] < smallest:
            rich = sizes.argmax()
            label = counts[:, rich].argmax()
            counts[label, [rich, poor]] += (-1, 1)
            sizes[[rich, poor]] += (-1, 1)
    return counts


def _deal_by_class(labels: Integers, counts: Integers, rng: np.random.Generator) -> list[Integers]:
    """Parts with counts[class, client] random items of each class."""
    owner = np.empty(len(labels), dtype=np.int64)
    for row, label in zip(counts, np.unique(labels), strict=True):
        members = rng.permutation(np.flatnonzero(labels == label))
        owner[members] = np.repeat(np.arange(len(row)), row)
    order = np.argsort(owner, kind="stable")
    return np.split(order, np.cumsum(counts.sum(axis=0))[:-1])
