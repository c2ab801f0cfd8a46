"""Density clusters of clients, given their distances.

HDBSCAN: Campello, Moulavi and Sander, "Density-Based Clustering Based on Hierarchical Density Estimates",
PAKDD 2013, by scikit-learn, which counts a point among its own neighbours: its `min_samples` is one more than
that of the `hdbscan` package, which the papers of FLAME and DeepSight use.
"""

from collections.abc import Iterable

import torch
from sklearn.cluster import HDBSCAN

from fedsim.contracts import Matrix


def density_clusters(distances: Matrix, *, smallest: int, neighbours: int, single: bool = False) -> list[int]:
    """The cluster of each client.

    Args:
        distances: [n, n], symmetric and finite, with zeros on the diagonal.
        smallest: clients in the smallest cluster, at least 2.
        neighbours: others within the core distance, `min_samples` of the `hdbscan` package; below n.
        single: may all clients form one cluster?

    Returns:
        n cluster numbers from 0; -1 for a client in none.
    """
    found = HDBSCAN(
        min_cluster_size=smallest,
        min_samples=neighbours + 1,
        metric="precomputed",
        allow_single_cluster=single,
        copy=True,
    ).fit(distances.cpu().double().numpy())
    return [int(label) for label in found.labels_]


def apart(labels: Iterable[int]) -> Matrix:
    """[n, n] float64: 0 for two clients of one cluster and on the diagonal, else 1."""
    numbers = torch.tensor(list(labels))
    together = (numbers[:, None] == numbers[None, :]) & (numbers[:, None] >= 0)
    return (~together).double().fill_diagonal_(0.0)
