import numpy as np
import pytest

from fedsim.data.graph_partition import Louvain, Metis, MetisOverlap, adjacency
from fedsim.data.pool import Items
from fedsim.errors import ConfigError, DataError


def grid(side):
    """Nodes of a side x side lattice, edges in both directions."""
    number = np.arange(side * side).reshape(side, side)
    pairs = np.concatenate(
        [
            np.stack([number[:, :-1].ravel(), number[:, 1:].ravel()]),
            np.stack([number[:-1].ravel(), number[1:].ravel()]),
        ],
        axis=1,
    )
    edges = np.concatenate([pairs, pairs[::-1]], axis=1)
    zeros = np.zeros(side * side, dtype=np.int64)
    return Items(labels=zeros, dataset=zeros, edge_index=edges)


def cut(items, parts):
    owner = np.empty(len(items), dtype=np.int64)
    for number, part in enumerate(parts):
        owner[part] = number
    return int((owner[items.edge_index[0]] != owner[items.edge_index[1]]).sum()) // 2


@pytest.mark.parametrize("partition", [Metis(), Louvain(resolution=2.0)], ids=repr)
@pytest.mark.parametrize("clients", [1, 3, 8])
@pytest.mark.parametrize("seed", [0, 1])
def test_every_node_is_assigned_exactly_once(partition, clients, seed):
    items = grid(12)
    parts = partition.divide(items, clients, np.random.default_rng(seed))
    again = partition.divide(items, clients, np.random.default_rng(seed))
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(144))
    assert all(np.array_equal(a, b) for a, b in zip(parts, again, strict=True))


@pytest.mark.parametrize("clients", [2, 5, 10])
def test_metis_is_balanced_and_cuts_less_than_chance(clients):
    items = grid(20)
    parts = Metis().divide(items, clients, np.random.default_rng(0))
    assert max(map(len, parts)) <= 1.1 * 400 / clients + 1
    chance = np.array_split(np.random.default_rng(0).permutation(400), clients)
    assert cut(items, parts) < 0.35 * cut(items, chance)


def test_louvain_keeps_communities_whole():
    clique = np.array([(a, b) for a in range(6) for b in range(6) if a != b]).T
    bridges = np.array([[0, 6, 12, 18], [6, 12, 18, 0]])
    edges = np.concatenate([*(clique + 6 * k for k in range(4)), bridges], axis=1)
    zeros = np.zeros(24, dtype=np.int64)
    items = Items(labels=zeros, dataset=zeros, edge_index=edges)
    parts = Louvain().divide(items, 4, np.random.default_rng(0))
    assert sorted(tuple(part) for part in parts) == [tuple(range(6 * k, 6 * k + 6)) for k in range(4)]
    assert sorted(len(part) for part in Louvain().divide(items, 2, np.random.default_rng(0))) == [12, 12]
    with pytest.raises(DataError, match="found 4 communities for 5 clients"):
        Louvain().divide(items, 5, np.random.default_rng(0))


@pytest.mark.parametrize("seed", range(3))
def test_overlap_follows_its_definition(seed):
    items = grid(20)
    parts = MetisOverlap().divide(items, 10, np.random.default_rng(seed))
    communities = Metis().divide(items, 2, np.random.default_rng(seed))
    for number, part in enumerate(parts):
        community = communities[number // 5]
        assert set(part) <= set(community)
        assert len(part) == len(np.unique(part)) == len(community) // 2
    assert len({tuple(part) for part in parts}) == 10
    assert len(np.intersect1d(parts[0], parts[1])) > 0
    assert len(np.intersect1d(parts[0], parts[5])) == 0


def test_overlap_refuses_other_numbers_of_clients():
    with pytest.raises(DataError, match="multiple of 5, found 12"):
        MetisOverlap().divide(grid(5), 12, np.random.default_rng(0))
    with pytest.raises(ConfigError, match=r"fraction must lie in \(0, 1\], found 0"):
        MetisOverlap(fraction=0.0)
    with pytest.raises(ConfigError, match="clients_per_community must be at least 1, found 0"):
        MetisOverlap(clients_per_community=0)


def test_graph_partitions_need_a_graph():
    zeros = np.zeros(9, dtype=np.int64)
    with pytest.raises(DataError, match="metis divides the nodes of one graph"):
        Metis().divide(Items(labels=zeros, dataset=zeros), 3, np.random.default_rng(0))
    with pytest.raises(ConfigError, match="resolution must be above 0, found 0"):
        Louvain(resolution=0.0)


def test_more_parts_than_nodes_are_refused():
    with pytest.raises(DataError, match="metis"):
        Metis().divide(grid(2), 5, np.random.default_rng(0))


def test_adjacency_is_simple_and_symmetric():
    edges = np.array([[0, 0, 1, 2, 2], [1, 1, 0, 2, 0]])
    zeros = np.zeros(3, dtype=np.int64)
    found = adjacency("metis", Items(labels=zeros, dataset=zeros, edge_index=edges)).toarray()
    assert np.array_equal(found, [[0, 1, 1], [1, 0, 0], [1, 0, 0]])
