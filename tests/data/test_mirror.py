"""Real data sets of the mirror: counts as the mirror's own page states them."""

import json

import numpy as np
import pytest
import torch

from fedsim.data.federate import federate
from fedsim.data.graph_partition import Louvain, Metis, MetisOverlap
from fedsim.data.hub import Hub
from fedsim.data.leakage import leakage
from fedsim.data.partition import Dirichlet, Iid, PerDataset
from fedsim.data.pyg import PyG

SMALL_NODES = {
    "Planetoid/Cora": (2708, 10556, 1433, 7),
    "Planetoid/CiteSeer": (3327, 9104, 3703, 6),
    "CitationFull/Cora_ML": (2995, 16316, 2879, 7),
    "WebKB/Cornell": (183, 298, 1703, 5),
    "WebKB/Texas": (183, 325, 1703, 5),
    "WebKB/Wisconsin": (251, 515, 1703, 5),
}
LARGE_NODES = {
    "Amazon/Photo": (7650, 238162, 745, 8),
    "Amazon/Computers": (13752, 491722, 767, 10),
    "Coauthor/CS": (18333, 163788, 6805, 15),
    "WikipediaNetwork/chameleon": (2277, 36101, 2325, 5),
    "Actor": (7600, 30019, 932, 5),
    "HeterophilousGraphDataset/Tolokers": (11758, 1038000, 10, 2),
}
SMALL_GRAPHS = {"MUTAG": (188, 2, 17.93, 19.79), "BZR": (405, 2, 35.75, 38.36)}
LARGE_GRAPHS = {
    "COX2": (467, 2, 41.22, 43.45),
    "DHFR": (756, 2, 42.43, 44.54),
    "PTC_MR": (344, 2, None, None),
    "AIDS": (2000, 2, 15.69, 16.20),
    "NCI1": (4110, 2, None, None),
    "ENZYMES": (600, 6, 32.63, 62.14),
    "PROTEINS": (1113, 2, 39.06, 72.82),
    "IMDB-BINARY": (1000, 2, None, None),
    "IMDB-MULTI": (1500, 3, None, None),
}
slow = pytest.mark.slow


def cases(small, large):
    return [*small.items(), *(pytest.param(*item, marks=slow) for item in large.items())]


@pytest.mark.parametrize(("name", "counts"), cases(SMALL_NODES, LARGE_NODES))
def test_graphs_of_nodes(mirror, name, counts):
    (pool,) = PyG(name=name, mirror=str(mirror)).load()
    assert (len(pool.y), pool.edge_index.shape[1], pool.x.shape[1], pool.classes) == counts
    assert pool.x.dtype == torch.float32
    assert pool.facts["source"] == "mirror"


@pytest.mark.parametrize(("name", "counts"), cases(SMALL_GRAPHS, LARGE_GRAPHS))
def test_sets_of_graphs(mirror, name, counts):
    (pool,) = PyG(name=f"TUDataset/{name}", mirror=str(mirror)).load()
    graphs, classes, nodes, edges = counts
    assert (len(pool.graphs), pool.classes) == (graphs, classes)
    if nodes:
        assert len(pool.graphs.x) / graphs == pytest.approx(nodes, abs=0.005)
        assert pool.graphs.edge_index.shape[1] / 2 / graphs == pytest.approx(edges, abs=0.005)
    if name.startswith("IMDB"):
        assert pool.graphs.x.sum(1).unique().tolist() == [1.0]


@pytest.fixture
def cora(mirror):
    return PyG(name="Planetoid/Cora", mirror=str(mirror), largest_component=True, normalize="row", scale=10.0)


def test_cora_in_ten_parts(cora):
    data = federate(cora, Metis(), 10, None, 0)
    again = federate(cora, Metis(), 10, None, 0)
    facts = data.facts["sets"][0]
    sizes = [sum(sizes) for sizes in data.facts["sizes"]]
    assert sum(sizes) == 2485  # the largest component, as published for Cora
    assert max(sizes) <= 1.1 * 248.5
    assert facts["outside_largest_component"] == 2708 - 2485
    assert 0 < facts["dropped_edges"] < 0.2 * facts["edges"]
    assert leakage(data)["shared_in_client"] == leakage(data)["shared_with_server"] == 0
    assert json.dumps(data.facts) == json.dumps(again.facts)
    sums = data.clients[0].train.x.sum(1)
    torch.testing.assert_close(sums, torch.full_like(sums, 10.0), rtol=1e-5, atol=0)


def test_cora_overlapping_and_by_louvain(cora):
    overlapping = federate(cora, MetisOverlap(), 10, None, 0)
    assert overlapping.facts["unassigned"] == pytest.approx(2485 / 32, rel=0.35)  # each misses half, 5 times
    assert leakage(overlapping)["shared_in_client"] == 0
    louvain = federate(cora, Louvain(), 5, None, 0)
    sizes = [sum(sizes) for sizes in louvain.facts["sizes"]]
    assert sum(sizes) == 2485
    assert max(sizes) - min(sizes) <= 2485 / 5


@slow
def test_the_chemical_federation(mirror):
    names = ("MUTAG", "BZR", "COX2", "DHFR", "PTC_MR", "AIDS", "NCI1")
    source = PyG(name=tuple(f"TUDataset/{name}" for name in names), mirror=str(mirror))
    data = federate(source, PerDataset(), 7, None, 0)
    assert [sum(sizes) for sizes in data.facts["sizes"]] == [188, 405, 467, 756, 344, 2000, 4110]
    assert len({client.spec.shape for client in data.clients}) > 3


@slow
def test_cifar10(mirror):
    hub = Hub(name="uoft-cs/cifar10", mirror=str(mirror))
    (pool,) = hub.load()
    assert torch.equal(pool.rows.y.bincount(), torch.full((10,), 5000))
    assert torch.equal(pool.test.y.bincount(), torch.full((10,), 1000))
    pixels = pool.rows.x.numpy()
    mean = [pixels[:, channel].mean(dtype=np.float64) / 255 for channel in range(3)]
    assert mean == pytest.approx([0.491400, 0.482158, 0.446531], abs=1e-6)
    assert pool.facts["notes_in_lines"] == {"jpeg_test.txt": 21, "jpeg_train.txt": 82}
    data = federate(hub, Dirichlet(alpha=0.5), 100, None, 0)
    assert set(leakage(data).values()) == {0}


@slow
def test_mnist(mirror):
    (pool,) = Hub(name="ylecun/mnist", mirror=str(mirror)).load()
    assert pool.rows.x.shape == (60000, 1, 28, 28)
    assert pool.rows.x.double().mean() / 255 == pytest.approx(0.13066, abs=1e-5)
    assert pool.rows.x.double().std() / 255 == pytest.approx(0.30811, abs=1e-5)
    assert (
        federate(Hub(name="ylecun/mnist", mirror=str(mirror), limit=500), Iid(), 5, None, 0).facts["items"]
        == 500
    )
