"""Partitions of one graph's nodes: METIS, Louvain, and overlapping halves of METIS communities.

Karypis and Kumar 1998 (pymetis); Blondel et al. 2008 (networkx). Both see the graph undirected, without
self-loops and double edges.
"""

from dataclasses import dataclass
from typing import ClassVar

import networkx
import numpy as np
import pymetis
import scipy.sparse as sparse

from fedsim.data.partition import enough, packed
from fedsim.data.pool import Integers, Items
from fedsim.errors import ConfigError, DataError


@dataclass(frozen=True, kw_only=True)
class Metis:
    """Parts of nearly equal size with few edges between them."""

    def divide(self, items: Items, clients: int, rng: np.random.Generator) -> list[Integers]:
        """See `fedsim.data.pool.Partition`."""
        enough("metis", len(items), clients, each=1)
        return metis_parts("metis", items, clients, rng)


@dataclass(frozen=True, kw_only=True)
class Louvain:
    """Communities of highest modularity, packed whole into clients of similar size.

    Attributes:
        resolution: above 1: more and smaller communities.
    """

    resolution: float = 1.0

    def __post_init__(self) -> None:
        if not self.resolution > 0.0:
            raise ConfigError(f"resolution must be above 0, found {self.resolution}.")

    def divide(self, items: Items, clients: int, rng: np.random.Generator) -> list[Integers]:
        """See `fedsim.data.pool.Partition`."""
        enough("louvain", len(items), clients, each=1)
        graph = networkx.from_scipy_sparse_array(adjacency("louvain", items))
        found = networkx.community.louvain_communities(
            graph, resolution=self.resolution, seed=int(rng.integers(2**31))
        )
        communities = [np.array(sorted(community), dtype=np.int64) for community in found]
        if len(communities) < clients:
            raise DataError(
                f"federation.partition: louvain found {len(communities)} communities for {clients} clients: "
                "raise federation.partition.resolution, or take fewer clients."
            )
        return packed(communities, clients)


@dataclass(frozen=True, kw_only=True)
class MetisOverlap:
    """METIS communities, each seen by several clients that hold a random fraction of its nodes.

    The overlapping protocol of FED-PUB (Baek et al. 2023): 10, 30 or 50 clients over 2, 6 or 10
    communities. Clients of one community share nodes; some nodes may belong to nobody.

    Attributes:
        clients_per_community: federation.clients must be a multiple of it.
        fraction: of the community's nodes that each client draws, rounded down.
    """

    overlaps: ClassVar[bool] = True

    clients_per_community: int = 5
    fraction: float = 0.5

    def __post_init__(self) -> None:
        if self.clients_per_community < 1:
            raise ConfigError(
                f"clients_per_community must be at least 1, found {self.clients_per_community}."
            )
        if not 0.0 < self.fraction <= 1.0:
            raise ConfigError(f"fraction must lie in (0, 1], found {self.fraction}.")

    def divide(self, items: Items, clients: int, rng: np.random.Generator) -> list[Integers]:
        """See `fedsim.data.pool.Partition`."""
        each = self.clients_per_community
        if clients % each:
            raise DataError(
                f"federation.partition: metis_overlap places {each} clients in every community: "
                f"federation.clients must be a multiple of {each}, found {clients}."
            )
        communities = metis_parts("metis_overlap", items, clients // each, rng)
        return [
            np.sort(rng.permutation(community)[: int(len(community) * self.fraction)])
            for community in communities
            for _ in range(each)
        ]


def metis_parts(partition: str, items: Items, parts: int, rng: np.random.Generator) -> list[Integers]:
    """The nodes of each METIS part, ascending.

    Raises:
        DataError: the items are not nodes, or METIS leaves a part empty.
    """
    graph = adjacency(partition, items)
    owner = np.zeros(len(items), dtype=np.int64)
    if parts > 1:
        options = pymetis.Options(seed=int(rng.integers(2**31)))
        edges = pymetis.CSRAdjacency(graph.indptr, graph.indices)
        _, found = pymetis.part_graph(parts, adjacency=edges, options=options)
        owner = np.asarray(found, dtype=np.int64)
    nodes = [np.flatnonzero(owner == part) for part in range(parts)]
    if empty := [part for part, members in enumerate(nodes) if not len(members)]:
        raise DataError(
            f"federation.partition: {partition} leaves {len(empty)} of {parts} parts of {len(items)} nodes "
            f"empty (first: part {empty[0]}): take fewer clients."
        )
    return nodes


def adjacency(partition: str, items: Items) -> "sparse.csr_array":
    """[v, v] symmetric 0/1 matrix without a diagonal.

    Raises:
        DataError: the items are not the nodes of one graph.
    """
    if items.edge_index is None or len(np.unique(items.dataset)) != 1:
        raise DataError(
            f"federation.partition: {partition} divides the nodes of one graph; this data has no such graph: "
            "use iid, dirichlet, shards, quantity or per_dataset."
        )
    source, target = items.edge_index[:, items.edge_index[0] != items.edge_index[1]]
    ends = (np.concatenate([source, target]), np.concatenate([target, source]))
    matrix = sparse.csr_array((np.ones(len(ends[0])), ends), shape=(len(items), len(items)))
    matrix.sum_duplicates()
    matrix.data[:] = 1.0
    matrix.sort_indices()
    return matrix
