"""Collections of graphs: their features, keys with shared and own signs, and marks in a model."""

import pytest
import torch

from fedsim.contracts import DataSpec
from fedsim.data.examples import Graphs
from fedsim.plugins import build
from fedsim.training.functional import model_tensors
from fedsim.training.optimizers import Adam
from fedsim.training.template import SeededModel
from fedsim.watermark.descent import descend
from fedsim.watermark.graph_level import Collections, GraphKey, GraphMark
from fedsim.watermark.statistics import key_match

FEATURES = 7


def molecules(count=60):
    rng = torch.Generator().manual_seed(0)
    sizes = torch.randint(3, 9, (count,), generator=rng)
    ends = torch.cat([torch.zeros(1, dtype=torch.int64), sizes.cumsum(0)])
    kinds = torch.multinomial(torch.tensor([6.0, 4, 3, 2, 2, 1, 1]), int(ends[-1]), True, generator=rng)
    x = torch.eye(FEATURES)[kinds]
    edges = torch.cat([torch.stack([torch.arange(n - 1), torch.arange(1, n)]) for n in sizes.tolist()], dim=1)
    edge_ends = torch.cat([torch.zeros(1, dtype=torch.int64), (sizes - 1).cumsum(0)])
    return Graphs(x, edges, torch.arange(count) % 2, ends, edge_ends)


@pytest.fixture(scope="module")
def graphs():
    return molecules()


def key_of(graphs, sets, shared, marks=4):
    drawn = torch.randperm(60, generator=torch.Generator().manual_seed(1))[: 5 * sets].view(sets, 5)
    return GraphKey.of(
        graphs, drawn, owner="A", date="2026-01-01", secret="ab" * 32, shared=shared, marks=marks
    )


def test_features_are_means_over_a_graph_s_nodes(graphs):
    sets = torch.tensor([[3, 8], [0, 59]])
    found = Collections.of(graphs, sets)
    for row, own in zip(sets.tolist(), found.x, strict=True):
        for number, features in zip(row, own, strict=True):
            start, stop = graphs.node_ends[number], graphs.node_ends[number + 1]
            torch.testing.assert_close(features, graphs.x[start:stop].double().mean(dim=0))


@pytest.mark.parametrize(("shared", "different"), [(True, 4), (False, 24)])
def test_signs_are_shared_or_a_collection_s_own(graphs, shared, different):
    key = key_of(graphs, 6, shared)
    assert key.signs.shape == (6, 4)
    assert int((key.signs > 0).sum()) == 12
    assert (key.signs == key.signs[0]).all() == shared
    seen = torch.sign(torch.randn(6, 4, generator=torch.Generator().manual_seed(2)))
    match = key.match(seen)
    assert match.matches == int((seen == key.signs).sum())
    if not shared:
        assert match == key_match(seen.reshape(1, -1), key.signs.reshape(-1))


def test_other_collections_or_secrets_draw_other_signs(graphs):
    key = key_of(graphs, 6, False)
    other = GraphKey.of(
        graphs, key.sets.flip(0), owner="A", date="2026-01-01", secret="ab" * 32, shared=False, marks=4
    )
    assert not torch.equal(other.signs, key.signs)


def test_a_marked_model_of_graphs_is_convicted(graphs):
    key = key_of(graphs, 10, shared=False)
    mark = GraphMark.of(graphs, key)
    table = build("models", {"kind": "gin", "hidden": 24, "layers": 2, "dropout": 0.0}, "model")
    model = SeededModel(table, 0).build(DataSpec("graphs", (FEATURES,), 2))
    start = model_tensors(model)

    def losses(tensors, step):
        return mark.loss(model, tensors, 0.02).float()

    marked = descend(start, losses, Adam(learning_rate=0.01), 150)
    assert mark.match(model, marked).p < 1e-6
    assert mark.match(model, start).p > 1e-3
    assert mark.signs(model, marked).shape == (10, FEATURES)
