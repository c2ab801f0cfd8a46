import numpy as np
import pytest
import torch

from fedsim.data.digits import Digits
from fedsim.data.divide_rows import statistics
from fedsim.data.examples import Graphs, Rows
from fedsim.data.federate import federate
from fedsim.data.graph_partition import Metis, MetisOverlap
from fedsim.data.partition import Dirichlet, Iid, Natural, PerDataset, Shards
from fedsim.data.pool import GraphPool
from fedsim.errors import ConfigError, DataError

SPLITS = ("train", "val", "test")


def joined(lists):
    return [number for part in lists for number in part]


def numbers(examples):
    """The items behind rows or nodes, whose only feature is their number."""
    x = examples.x if isinstance(examples, Rows) else examples.x[examples.index]
    return x[:, 0].long().tolist()


def graph_pool(count, features=2, name="graphs", seed=0):
    """Graph i has i % 3 + 1 nodes that carry i, and edges between all of them."""
    rng = np.random.default_rng(seed)
    sizes = np.arange(count) % 3 + 1
    edges = [np.array([(a, b) for a in range(n) for b in range(n) if a != b]).reshape(-1, 2).T for n in sizes]
    graphs = Graphs(
        torch.from_numpy(np.repeat(np.arange(count, dtype=np.float32), sizes))[:, None].expand(-1, features),
        torch.from_numpy(np.concatenate(edges, axis=1)),
        torch.from_numpy(rng.integers(2, size=count)),
        torch.from_numpy(np.cumsum([0, *sizes])),
        torch.from_numpy(np.cumsum([0, *(edge.shape[1] for edge in edges)])),
    )
    return GraphPool(name=name, graphs=graphs, classes=2)


def graph_numbers(graphs):
    return graphs.x[graphs.node_ends[:-1] - graphs.node_ends[0], 0].long().tolist()


@pytest.mark.parametrize("partition", [Iid(), Dirichlet(alpha=0.3, min_samples=3), Shards()], ids=repr)
@pytest.mark.parametrize("seed", range(3))
def test_rows_are_divided_without_loss_or_overlap(given, row_pool, partition, seed):
    data = federate(given(row_pool(501)), partition, 9, None, seed)
    parts = [numbers(getattr(client, split)) for client in data.clients for split in SPLITS]
    held = numbers(data.test)
    assert len(held) == 100
    assert sorted(joined([*parts, held])) == list(range(501))


def test_rows_are_held_once(given, row_pool):
    data = federate(given(row_pool(300)), Iid(), 20, None, 0)
    splits = [getattr(client, split) for client in data.clients for split in SPLITS]
    assert len({split.x.untyped_storage().data_ptr() for split in splits}) == 1
    assert len({split.y.untyped_storage().data_ptr() for split in splits}) == 1


def test_the_own_test_split_is_the_servers(given, row_pool):
    pool = row_pool(100, test=Rows(torch.full((7, 1), -1.0), torch.zeros(7, dtype=torch.int64)))
    data = federate(given(pool), Iid(), 4, None, 0)
    assert numbers(data.test) == [-1] * 7
    assert sum(sum(sizes) for sizes in data.facts["sizes"]) == 100


def test_default_splits(given, row_pool, ring_pool):
    rows = federate(given(row_pool(100, test_fraction=0.5)), Iid(), 1, None, 0)
    assert rows.facts["sizes"] == [[40, 5, 5]]
    nodes = federate(given(ring_pool(50)), Metis(), 1, None, 0)
    assert nodes.facts["sizes"] == [[10, 20, 20]]
    graphs = federate(given(graph_pool(50)), Iid(), 1, None, 0)
    assert graphs.facts["sizes"] == [[40, 5, 5]]
    own = federate(given(ring_pool(50)), Metis(), 1, (0.6, 0.2, 0.2), 0)
    assert own.facts["sizes"] == [[30, 10, 10]]


def test_splits_are_stratified(given, row_pool):
    data = federate(given(row_pool(1000, classes=2)), Iid(), 4, None, 0)
    for client in data.clients:
        share = client.train.labels().double().mean()
        assert client.test.labels().double().mean() == pytest.approx(float(share), abs=0.06)


def test_limit_keeps_a_stratified_subset_of_train(given, row_pool):
    data = federate(given(row_pool(1000, limit=100)), Iid(), 4, None, 0)
    assert sum(sum(sizes) for sizes in data.facts["sizes"]) + len(data.test) == 100


def test_statistics_come_from_training_rows_alone(given, row_pool):
    pool = row_pool(400, standardise=torch.ones(1, dtype=torch.bool))
    data = federate(given(pool), Iid(), 5, None, 3)
    train = torch.tensor([number for client in data.clients for number in numbers(client.train)]).double()
    batches = torch.cat([client.train.batch().x for client in data.clients]).double()
    assert batches.mean() == pytest.approx(0.0, abs=1e-6)
    assert batches.std(correction=0) == pytest.approx(1.0, abs=1e-6)
    expected = (data.test.x.double() - train.mean()) / train.std(correction=0)
    torch.testing.assert_close(data.test.batch().x.double(), expected, rtol=1e-5, atol=1e-6)


def test_statistics_follow_the_definition():
    images = torch.randint(0, 256, (5000, 3, 2, 2), dtype=torch.uint8)
    mean, std = statistics(images, torch.ones(3, 1, 1, dtype=torch.bool))
    exact = images.double().transpose(0, 1).flatten(1)
    torch.testing.assert_close(mean.flatten().double(), exact.mean(1), rtol=1e-6, atol=0)
    torch.testing.assert_close(std.flatten().double(), exact.std(1, correction=0), rtol=1e-6, atol=0)
    table = torch.tensor([[1.0, 5.0, 0.0], [3.0, 5.0, 1.0]])
    mean, std = statistics(table, torch.tensor([True, True, False]))
    assert mean.tolist() == [2.0, 5.0, 0.0]
    assert std.tolist() == [1.0, 1.0, 1.0]  # a constant column, and one that is left alone


def test_natural_ids_follow_the_held_out_rows(given, row_pool):
    ids = torch.arange(300) % 6
    data = federate(given(row_pool(300, ids=ids)), Natural(), 6, None, 0)
    for number, client in enumerate(data.clients):
        assert {row % 6 for split in SPLITS for row in numbers(getattr(client, split))} == {number}


@pytest.mark.parametrize("seed", range(3))
def test_nodes_become_induced_subgraphs(given, ring_pool, seed):
    pool = ring_pool(61)
    data = federate(given(pool), Metis(), 5, None, seed)
    everyone, kept = [], set()
    for client in data.clients:
        own = client.train.x[:, 0].long()
        assert client.train.x is client.test.x
        counted = joined(numbers(getattr(client, split)) for split in SPLITS)
        assert sorted(counted) == sorted(own.tolist())
        assert torch.equal(client.train.y, pool.y[own])
        everyone += counted
        kept |= {tuple(edge) for edge in own[client.train.edge_index].T.tolist()}
        expected = {tuple(edge) for edge in pool.edge_index.T.tolist() if set(edge) <= set(own.tolist())}
        assert {tuple(edge) for edge in own[client.train.edge_index].T.tolist()} == expected
    assert sorted(everyone) == list(range(61))
    facts = data.facts["sets"][0]
    assert facts["edges"] == pool.edge_index.shape[1]
    assert facts["dropped_edges"] == facts["edges"] - len(kept)


def test_the_servers_nodes_are_the_clients_test_nodes_in_the_whole_graph(given, ring_pool):
    pool = ring_pool(60)
    data = federate(given(pool), Metis(), 4, None, 0)
    assert sorted(numbers(data.test)) == sorted(joined(numbers(client.test) for client in data.clients))
    place = data.test.x[:, 0].long()
    found = sorted(map(tuple, place[data.test.edge_index].T.tolist()))
    assert found == sorted(map(tuple, pool.edge_index.T.tolist()))
    assert torch.equal(data.test.y, pool.y[place])
    held = {client.train.x.untyped_storage().data_ptr() for client in data.clients}
    assert held == {data.test.x.untyped_storage().data_ptr()}


@pytest.mark.parametrize("seed", range(3))
def test_overlapping_clients_never_train_on_anothers_test_node(given, ring_pool, seed):
    data = federate(given(ring_pool(200)), MetisOverlap(), 10, None, seed)
    learned = {
        n for client in data.clients for split in ("train", "val") for n in numbers(getattr(client, split))
    }
    tested = {number for client in data.clients for number in numbers(client.test)}
    assert not learned & tested
    assert set(numbers(data.test)) == tested
    assert data.facts["shared_items"] > 0
    assert data.facts["unassigned"] == 200 - len(learned | tested)
    for client in data.clients:
        counted = joined(numbers(getattr(client, split)) for split in SPLITS)
        assert len(counted) == len(set(counted)) == len(client.train.y)


def test_graphs_are_divided_and_tested_together(given):
    data = federate(given(graph_pool(90)), Iid(), 6, None, 0)
    parts = [graph_numbers(getattr(client, split)) for client in data.clients for split in SPLITS]
    assert sorted(joined(parts)) == list(range(90))
    assert graph_numbers(data.test) == joined(graph_numbers(client.test) for client in data.clients)
    assert data.facts["sets"][0]["server_test"] == "union of the clients' test splits"
    storages = {client.train.x.untyped_storage().data_ptr() for client in data.clients}
    assert storages == {data.test.x.untyped_storage().data_ptr()}


def test_one_data_set_per_client(given):
    source = given(graph_pool(40, features=2, name="a"), graph_pool(70, features=5, name="b", seed=1))
    data = federate(source, PerDataset(), 2, None, 0)
    assert [client.spec.shape for client in data.clients] == [(2,), (5,)]
    assert [sum(sizes) for sizes in data.facts["sizes"]] == [40, 70]
    assert data.test is None
    assert data.spec is None
    assert [entry["clients"] for entry in data.facts["sets"]] == [[0], [1]]
    shared = federate(source, PerDataset(), 4, None, 0)
    assert [sum(sizes) for sizes in shared.facts["sizes"]] == [20, 20, 35, 35]


def test_several_data_sets_need_their_partition(given):
    with pytest.raises(DataError, match=r"Iid mixes several data sets in client 0.*per_dataset"):
        federate(given(graph_pool(40), graph_pool(40)), Iid(), 2, None, 0)


@pytest.mark.parametrize(
    ("clients", "split", "message"),
    [
        (0, None, r"federation\.clients must be at least 1, found 0"),
        (2, (0.5, 0.5, 0.5), r"federation\.split must be three fractions"),
        (2, (0.0, 0.5, 0.5), "with train above 0"),
        (2, (1.2, -0.1, -0.1), r"found \[1\.2, -0\.1, -0\.1\]"),
        (2, (float("nan"), 0.5, 0.5), r"federation\.split"),
    ],
)
def test_senseless_numbers_are_refused(clients, split, message):
    with pytest.raises(ConfigError, match=message):
        federate(Digits(), Iid(), clients, split, 0)


def test_a_client_too_small_to_train_is_named(given, ring_pool):
    with pytest.raises(DataError, match="Client 0 has 2 items, which leaves none to train on"):
        federate(given(ring_pool(8)), Iid(), 4, None, 0)
    assert federate(given(ring_pool(12)), Iid(), 4, None, 0).facts["sizes"] == [[1, 1, 1]] * 4


def test_empty_tests_of_tiny_clients_are_reported(given, row_pool):
    data = federate(given(row_pool(10, test_fraction=0.2)), Iid(), 8, None, 0)
    assert data.facts["sizes"] == [[1, 0, 0]] * 8
    assert data.facts["empty_test"] == data.facts["empty_val"] == list(range(8))


class Broken:
    def __init__(self, *parts):
        self.parts = [np.array(part, dtype=np.int64) for part in parts]

    def divide(self, items, clients, rng):
        return self.parts


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ([[0, 1, 2]], "Broken made 1 parts for 2 clients"),
        ([[0, 1, 2], []], "Broken leaves client 1 empty"),
        ([[0, 1, 2], [3, 3]], "gives a client repeated or unknown items"),
        ([[0, 1, 2], [-1, 3]], "gives a client repeated or unknown items"),
        ([[0, 1, 2], [3, 800]], "gives a client repeated or unknown items"),
        ([[0, 1, 2], [2, 3]], "gives items of numbers to several clients"),
    ],
)
def test_a_partition_is_not_trusted(given, row_pool, parts, message):
    with pytest.raises(DataError, match=message):
        federate(given(row_pool(1000)), Broken(*parts), 2, None, 0)


def test_an_empty_or_tiny_set_is_refused(given, row_pool):
    with pytest.raises(DataError, match="numbers has 1 rows, too few"):
        federate(given(row_pool(1)), Iid(), 1, None, 0)
