import numpy as np
import pytest
import torch

from fedsim.data.federate import federate
from fedsim.data.graph_features import connected, degrees, normalised, squeezed, unsqueezed
from fedsim.data.partition import Iid, PerDataset
from fedsim.data.pyg import PyG
from fedsim.data.pyg_files import parsed
from fedsim.errors import ConfigError, DataError


def tu_files(root, name, graphs, labels=None, attributes=None):
    """Raw files of the TU collection for (edges, nodes, class) triples."""
    raw = root / "TUDataset" / name / "raw"
    raw.mkdir(parents=True)
    edges, indicator, start = [], [], 1
    for number, (pairs, nodes, _) in enumerate(graphs, 1):
        both = [*pairs, *((b, a) for a, b in pairs)]
        edges += [f"{a + start}, {b + start}" for a, b in sorted(both)]
        indicator += [str(number)] * nodes
        start += nodes
    (raw / f"{name}_A.txt").write_text("\n".join(edges) + "\n")
    (raw / f"{name}_graph_indicator.txt").write_text("\n".join(indicator) + "\n")
    (raw / f"{name}_graph_labels.txt").write_text("\n".join(str(c) for _, _, c in graphs) + "\n")
    if labels:
        (raw / f"{name}_node_labels.txt").write_text("\n".join(map(str, labels)) + "\n")
    if attributes:
        (raw / f"{name}_node_attributes.txt").write_text("\n".join(map(str, attributes)) + "\n")
    return raw


TRIANGLE, PATH, STAR = [(0, 1), (1, 2), (0, 2)], [(0, 1), (1, 2)], [(0, 1), (0, 2), (0, 3)]
GRAPHS = [(TRIANGLE, 3, 1), (PATH, 3, -1), (STAR, 4, 1), (PATH, 3, -1)] * 5


def test_graphs_without_features_get_degrees(tmp_path):
    tu_files(tmp_path, "SMALL", GRAPHS)
    (pool,) = PyG(name="TUDataset/SMALL", mirror=str(tmp_path)).load()
    degree = [2, 2, 2, 1, 2, 1, 3, 1, 1, 1]
    assert pool.graphs.x[:10].argmax(1).tolist() == degree
    assert pool.graphs.x.sum(1).tolist() == [1.0] * len(pool.graphs.x)
    assert pool.graphs.x.shape[1] == 4
    assert pool.graphs.y[:4].tolist() == [1, 0, 1, 0]
    assert pool.classes == 2
    assert pool.facts["features"] == "one-hot degrees, capped at 100"
    (capped,) = PyG(name="TUDataset/SMALL", mirror=str(tmp_path), degree_cap=2).load()
    assert capped.graphs.x[:10].argmax(1).tolist() == [min(d, 2) for d in degree]


def test_node_labels_and_attributes(tmp_path):
    nodes = sum(n for _, n, _ in GRAPHS)
    tu_files(tmp_path, "SMALL", GRAPHS, [n % 2 for n in range(nodes)], [n / 2 for n in range(nodes)])
    (pool,) = PyG(name="TUDataset/SMALL", mirror=str(tmp_path)).load()
    assert pool.graphs.x[:3].tolist() == [[1, 0], [0, 1], [1, 0]]
    (both,) = PyG(name="TUDataset/SMALL", mirror=str(tmp_path), node_attributes=True).load()
    assert both.graphs.x[:3].tolist() == [[0, 1, 0], [0.5, 0, 1], [1, 1, 0]]


def test_one_set_per_client(tmp_path):
    tu_files(tmp_path, "ONE", GRAPHS)
    tu_files(tmp_path, "TWO", GRAPHS[:12], [0] * sum(n for _, n, _ in GRAPHS[:12]))
    source = PyG(name=("TUDataset/ONE", "TUDataset/TWO"), mirror=str(tmp_path))
    data = federate(source, PerDataset(), 2, None, 0)
    assert [client.spec.shape for client in data.clients] == [(4,), (1,)]
    assert data.spec is data.test is None
    assert data.facts["name"] == "TUDataset/ONE, TUDataset/TWO"


def test_the_mirror_is_left_as_it_was(tmp_path):
    mirror = tmp_path / "mirror"
    tu_files(mirror, "SMALL", GRAPHS)
    for path in sorted(mirror.rglob("*"), reverse=True):
        path.chmod(0o444 if path.is_file() else 0o555)
    before = {path: path.stat().st_mtime_ns for path in mirror.rglob("*")}
    first = PyG(name="TUDataset/SMALL", mirror=str(mirror)).load()[0]
    second = PyG(name="TUDataset/SMALL", mirror=str(mirror)).load()[0]
    assert before == {path: path.stat().st_mtime_ns for path in mirror.rglob("*")}
    assert torch.equal(first.graphs.x, second.graphs.x)
    assert first.facts == second.facts
    assert first.facts["source"] == "mirror"
    assert len(first.facts["sha256"]) == 3
    for path in mirror.rglob("*"):
        path.chmod(0o755)


def test_an_incomplete_mirror_is_named_and_nothing_is_fetched(tmp_path):
    raw = tu_files(tmp_path, "SMALL", GRAPHS)
    (raw / "SMALL_A.txt").unlink()
    with pytest.raises(
        DataError, match=r"TUDataset.SMALL.raw lacks some of SMALL_A\.txt, SMALL_graph_indicator"
    ):
        PyG(name="TUDataset/SMALL", mirror=str(tmp_path)).load()


def test_damaged_files_are_named(tmp_path):
    raw = tu_files(tmp_path, "SMALL", GRAPHS)
    (raw / "SMALL_A.txt").write_text("one, two\n")
    with pytest.raises(DataError, match=r"files of TUDataset/SMALL in .* cannot be read: ValueError"):
        PyG(name="TUDataset/SMALL", mirror=str(tmp_path)).load()


def test_no_network_is_one_clear_line(tmp_path):
    with pytest.raises(
        DataError, match=r"Planetoid/PubMed is not in .*, .*cache.*github\.com cannot be reached"
    ) as info:
        PyG(name="Planetoid/PubMed", mirror=str(tmp_path)).load()
    assert "\n" not in str(info.value)


def test_a_download_is_kept(tmp_path, monkeypatch, own_cache):
    import fedsim.data.pyg_files as files

    fetched = []

    def download(family, name, root, offline):
        if offline is None:
            fetched.append(name)
            tu_files(root.parent / root.name / ".x", name, GRAPHS)
            (root / ".x" / "TUDataset" / name).rename(root / name)
            return None
        return opened(family, name, root, offline)

    opened = files._opened
    monkeypatch.setattr(files, "_opened", download)
    monkeypatch.setattr(files, "reachable", lambda host: True)
    first, second = (PyG(name="TUDataset/SMALL").load()[0] for _ in range(2))
    assert fetched == ["SMALL"]
    assert (first.facts["source"], second.facts["source"]) == ("download", "cache")
    assert first.facts["sha256"] == second.facts["sha256"]


def test_a_failed_download_gives_its_reason(monkeypatch, own_cache):
    def fails(*arguments, **named):
        raise OSError("404\nlong story")

    monkeypatch.setattr("fedsim.data.pyg_files._opened", fails)
    monkeypatch.setattr("fedsim.data.pyg_files.reachable", lambda host: True)
    with pytest.raises(DataError, match=r"Planetoid/Cora .* failed: OSError: 404$"):
        PyG(name="Planetoid/Cora").load()
    assert not list((own_cache / "downloads").rglob("raw"))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"name": "Planetoid/Coral"}, r"Planetoid has no 'Coral'; did you mean 'Cora'\?$"),
        ({"name": "Planetiod/Cora"}, r"no family 'Planetiod'; did you mean 'Planetoid'\?"),
        ({"name": "Cora"}, r"no family 'Cora'; did you mean 'Planetoid/Cora' or 'CitationFull/Cora'\?$"),
        ({"name": "Qq"}, r"no family 'Qq'; there are Planetoid, .*, TUDataset\.$"),
        ({"name": "Actor/film"}, "Actor is a single data set; write 'Actor'"),
        ({"name": "TUDataset"}, "must be TUDataset/NAME"),
        ({"name": "TUDataset/../x"}, "must be TUDataset/NAME"),
        ({"name": ()}, "name must hold at least one data set"),
        ({"name": ("Actor", "Actor")}, "holds a data set twice"),
        ({"name": "Actor", "scale": 0.0}, "scale must be above 0, found 0"),
        ({"name": "Actor", "degree_cap": 0}, "degree_cap must be at least 1, found 0"),
    ],
)
def test_illegal_fields_are_named(fields, message):
    with pytest.raises(ConfigError, match=message):
        PyG(**fields)


@pytest.mark.parametrize(
    ("written", "known"),
    [
        ("Planetoid/cora", ("Planetoid", "Cora")),
        ("Coauthor/cs", ("Coauthor", "CS")),
        ("CitationFull/cora_ml", ("CitationFull", "Cora_ML")),
        ("Actor", ("Actor", "Actor")),
        ("TUDataset/IMDB-BINARY", ("TUDataset", "IMDB-BINARY")),
    ],
)
def test_spelling_follows_the_family(written, known):
    assert parsed(written) == known


def test_rows_are_normalised():
    x = np.array([[1, 3, 0], [0, 0, 0], [-3, 4, 0]], dtype=np.float32)
    assert normalised(x, "none", 1.0) is x
    assert np.allclose(normalised(x, "row", 10.0), [[2.5, 7.5, 0], [0, 0, 0], [-30 / 7, 40 / 7, 0]])
    assert np.allclose(np.linalg.norm(normalised(x, "unit", 1.0), axis=1), [1, 0, 1])


def test_the_largest_component_is_renumbered():
    edges = np.array([[0, 2, 4, 5, 5], [2, 0, 5, 4, 1]])
    kept, found = connected(edges, 6)
    assert kept.tolist() == [1, 4, 5]
    assert found.tolist() == [[1, 2, 2], [2, 1, 0]]


@pytest.mark.parametrize("density", [0.0, 0.05, 0.9])
def test_squeezing_loses_nothing(density):
    rng = np.random.default_rng(0)
    x = (rng.random((30, 7)) * (rng.random((30, 7)) < density)).astype(np.float32)
    kept = squeezed(x, 0.25)
    assert ("x" in kept) == (density > 0.25)
    assert np.array_equal(unsqueezed(kept), x)


def test_degrees_count_edges_of_packed_graphs():
    arrays = {
        "edge_index": np.array([[0, 1, 0, 1, 1], [1, 0, 1, 0, 2]]),
        "node_ends": np.array([0, 2, 6]),
        "edge_ends": np.array([0, 2, 5]),
    }
    assert degrees(arrays, 9).argmax(1).tolist() == [1, 1, 1, 2, 0, 0]


def test_iid_graphs(tmp_path):
    tu_files(tmp_path, "SMALL", GRAPHS)
    data = federate(PyG(name="TUDataset/SMALL", mirror=str(tmp_path)), Iid(), 2, None, 0)
    assert data.facts["sizes"] == [[8, 1, 1]] * 2
    assert len(data.test) == 2
