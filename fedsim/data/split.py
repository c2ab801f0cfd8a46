"""Exact, stratified splits of a few items into a few roles."""

import numpy as np

from fedsim.data.pool import Integers


def apportion(total: int, shares: np.ndarray) -> Integers:
    """Whole numbers that sum to `total`, each within one of its share (largest remainder).

    Equal remainders favour the first share, then the last: a client's single spare example goes to
    training before testing, and to testing before validation.

    Args:
        total: what is divided.
        shares: [k] non-negative weights, not all zero.
    """
    exact = total * (np.asarray(shares, dtype=np.float64) / np.sum(shares))
    sizes: Integers = np.floor(exact + 1e-9).astype(np.int64)  # 0.1 * 30 is a hair below 3 in binary
    remainder = np.round(exact - sizes, 9)
    tie = np.arange(len(sizes))
    tie[0] = len(sizes)
    for position in np.lexsort((-tie, -remainder))[: total - int(sizes.sum())]:
        sizes[position] += 1
    return sizes


def stratified(labels: Integers, sizes: Integers, rng: np.random.Generator) -> list[Integers]:
    """Positions 0..n-1 divided into roles of exactly `sizes`, each class spread evenly over the roles.

    Items are shuffled, then laid out class by class, and the roles are dealt along that line at even
    distances: over any run of items, so over any class, a role gets its share within two items.

    Args:
        labels: [n] int64.
        sizes: [k], summing to n.
        rng: orders the items of a class and shifts the deal.

    Returns:
        k arrays of positions, each in random order.
    """
    order = rng.permutation(len(labels))
    order = order[np.argsort(labels[order], kind="stable")]
    places = [(np.arange(size) + rng.random()) / size for size in sizes if size]
    names = np.repeat(np.arange(len(sizes)), sizes)
    role = names[np.argsort(np.concatenate(places), kind="stable")] if places else names
    return [rng.permutation(order[role == k]) for k in range(len(sizes))]
