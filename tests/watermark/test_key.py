"""Keys: signs that follow from all the rest, files, commitments, and what is refused."""

import dataclasses
import hashlib
import hmac
import json

import pytest
import torch

from fedsim.errors import ConfigError
from fedsim.watermark.key import check_commitment, key_text, make_key, read_key
from fedsim.watermark.subgraphs import Graph, draw_sets, induced, set_size, split_nodes, without


def test_signs_are_the_documented_keyed_hash(world):
    key = world.key_of(world.graph)
    fields = {
        "format": "fedsim watermark key 1",
        "owner": "Ada",
        "date": "2026-01-31",
        "feature_count": 120,
        "classes": 4,
        "seed": 0,
        "sets": [list(row) for row in key.sets],
        "features": list(key.features),
        "data": key.data,
    }
    message = hashlib.sha256(json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()).digest()
    secret = bytes.fromhex(key.secret)
    ranks = [hmac.new(secret, message + bytes([0, 0, 0, i]), "sha256").digest() for i in range(60)]
    first_half = sorted(ranks)[:30]
    assert [1.0 if one in first_half else -1.0 for one in ranks] == key.signs.tolist()


@pytest.mark.parametrize(
    "change",
    [
        {"owner": "Eve"},
        {"date": "2026-02-01"},
        {"seed": 1},
        {"classes": 5},
        {"data": "00"},
        {"secret": "00" * 32},
        {"features": tuple(range(60))},
        {"sets": tuple(tuple(range(12 * t, 12 * t + 12)) for t in range(4))},
    ],
)
def test_whatever_changes_draws_the_signs_anew(world, change):
    key = world.key_of(world.graph)
    other = dataclasses.replace(key, **change)
    assert int((other.signs > 0).sum()) == 30
    assert 10 < int((other.signs != key.signs).sum()) < 50
    assert other.commitment() != key.commitment()


def test_another_node_in_the_data_is_another_key(world):
    key = world.key_of(world.graph)
    x = world.graph.x.clone()
    x[key.sets[0][0], 0] += 1
    with pytest.raises(ConfigError, match="data differ from those that the key was made for"):
        key.subgraphs(dataclasses.replace(world.graph, x=x))
    fewer = Graph(world.graph.x[:, :5], world.graph.edge_index, world.graph.y, 4)
    with pytest.raises(ConfigError, match="key is for 120 features, but the data have 5"):
        key.subgraphs(fewer)
    short = Graph(world.graph.x[:100], torch.zeros(2, 0, dtype=torch.int64), world.graph.y[:100], 4)
    with pytest.raises(ConfigError, match=r"names node \d+, but the data have 100 nodes"):
        key.subgraphs(short)


def test_a_file_is_readable_and_read_back(world, tmp_path):
    key, path = world.key_of(world.graph), tmp_path / "key.json"
    path.write_text(key_text(key), encoding="utf-8")
    assert read_key(path) == key
    content = json.loads(path.read_text())
    assert content["owner"] == "Ada"
    assert set(content["signs"]) == {"+", "-"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"signs": "+" * 60}, "signs do not follow"),
        ({"owner": "Eve"}, "signs do not follow"),
        ({"owner": " "}, "owner must be a name"),
        ({"date": "31.1.2026"}, "date must be like 2026-01-31"),
        ({"secret": "12"}, "secret must be 32 bytes"),
        ({"secret": "zz"}, "secret must be 32 bytes"),
        ({"sets": [[1, 2], [2, 3]]}, "sets must be disjoint"),
        ({"sets": [[1, 2], [3]]}, "sets must be one or more sets of as many nodes"),
        ({"features": [5, 3]}, "features must be at least 2 ascending"),
        ({"features": [3, 120]}, "features must be below feature_count = 120"),
        ({"classes": "four"}, "classes"),
        ({"format": "other"}, "is not a key of this program"),
        ({"surplus": 1}, "surplus"),
    ],
)
def test_a_file_that_was_changed_is_refused(world, tmp_path, change, message):
    path = tmp_path / "key.json"
    content = json.loads(key_text(world.key_of(world.graph)))
    path.write_text(json.dumps(content | change), encoding="utf-8")
    with pytest.raises(ConfigError, match=message) as caught:
        read_key(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["", "[1]", "{", '{"format": 3}'])
def test_what_is_no_key_is_refused(tmp_path, text):
    path = tmp_path / "key.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match="not a key"):
        read_key(path)
    with pytest.raises(ConfigError, match="cannot be read"):
        read_key(tmp_path / "none.json")


def test_a_commitment_opens_with_its_key_alone(world):
    key = world.key_of(world.graph)
    check_commitment(key, key.commitment())
    assert set(key.commitment()) == {"format", "owner", "date", "sha256"}
    with pytest.raises(ConfigError, match="does not open the commitment: sha256 differs"):
        check_commitment(world.key_of(world.graph, seed=1), key.commitment())
    with pytest.raises(ConfigError, match="owner differs"):
        check_commitment(world.key_of(world.graph, owner="Eve"), key.commitment())


def test_marks_default_to_the_paper_s_rule_within_the_features_in_use(world):
    assert len(world.key_of(world.graph, marks=None).features) == 49  # t = 33, LB = -2.2
    narrow = world.make_graph(features=9)
    assert len(world.key_of(narrow, marks=None).features) == 9
    with pytest.raises(ConfigError, match="marks must be between 2 and 9"):
        world.key_of(narrow, marks=10)


def test_induced_subgraphs_have_the_edges_among_their_nodes(world):
    graph = world.graph
    nodes = draw_sets(torch.arange(600), 5, 40, world.generator(0))
    found = induced(graph.x, graph.edge_index, nodes)
    pairs = graph.edge_index.T.tolist()
    for row, x, edges in zip(nodes.tolist(), found.x, found.edges, strict=True):
        place = {node: i for i, node in enumerate(row)}
        expected = sorted([place[a], place[b]] for a, b in pairs if a in place and b in place)
        assert sorted(edges.T.tolist()) == expected
        assert torch.equal(x, graph.x[row])
    x, edges = found.together()
    assert x.shape == (200, 120)
    assert bool((edges[0] // 40 == edges[1] // 40).all())


def test_sets_are_disjoint_and_ask_for_enough_nodes(world):
    nodes = torch.arange(10, 34)
    drawn = draw_sets(nodes, 4, 6, world.generator(0))
    assert sorted(drawn.flatten().tolist()) == nodes.tolist()
    with pytest.raises(ConfigError, match="5 sets of 6 nodes need 30 nodes, found 24"):
        draw_sets(nodes, 5, 6, world.generator(0))
    assert without(nodes, drawn[:3]).tolist() == drawn[3].tolist()
    assert [set_size(n) for n in (4590, 10999, 11830, 100)] == [22, 54, 59, 2]


def test_the_split_is_sixty_twenty_twenty():
    split = split_nodes(torch.arange(18333) % 15, 3)
    assert [len(one) for one in (split.train, split.val, split.test)] == [10999, 3666, 3668]
    assert len(torch.cat([split.train, split.val, split.test]).unique()) == 18333


def test_a_set_of_one_node_is_refused(world):
    with pytest.raises(ConfigError, match="as many nodes, at least 2"):
        make_key(
            world.graph, torch.tensor([[1], [2]]), owner="A", date="2026-01-01", secret="00" * 32, marks=2
        )
