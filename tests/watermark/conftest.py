"""A small graph with classes in its features and edges, and models of it."""

import warnings
from types import SimpleNamespace

import pytest
import torch

with warnings.catch_warnings():  # PyG compiles a class while it is imported, which torch 2.13 deprecates
    warnings.simplefilter("ignore", DeprecationWarning)
    import torch_geometric.nn  # noqa: F401

from fedsim.training.optimizers import Adam
from fedsim.watermark.embedding import Embedding
from fedsim.watermark.key import make_key
from fedsim.watermark.stored_model import build_model
from fedsim.watermark.subgraphs import Graph, draw_sets, split_nodes

SECRET = "5a" * 32
TABLE = {"kind": "sage", "hidden": 32, "layers": 2, "dropout": 0.1}


def generator(seed):
    return torch.Generator().manual_seed(seed)


def make_graph(nodes=600, features=120, classes=4, seed=0):
    """Binary features, half of them telling of the class; two of three edges stay within a class."""
    rng = generator(seed)
    y = torch.randint(classes, (nodes,), generator=rng)
    rates = 0.05 + 0.35 * torch.rand(classes, features, generator=rng)
    rates[:, features // 2 :] = 0.2
    x = (torch.rand(nodes, features, generator=rng) < rates[y]).float()
    ends = torch.randint(nodes, (2, 6 * nodes), generator=rng)
    kept = (y[ends[0]] == y[ends[1]]) | (torch.rand(6 * nodes, generator=rng) < 0.15)
    ends = ends[:, kept & (ends[0] != ends[1])]
    return Graph(x, torch.cat([ends, ends.flip(0)], dim=1), y, classes)


def key_of(graph, seed=0, sets=4, size=12, **changes):
    nodes = draw_sets(split_nodes(graph.y, 0).train, sets, size, generator(seed))
    known = {"owner": "Ada", "date": "2026-01-31", "secret": SECRET, "marks": 60}
    return make_key(graph, nodes, **(known | changes))


@pytest.fixture(scope="session")
def world():
    """The graph, its split, a template, and ways to make keys and options."""
    graph = make_graph()
    return SimpleNamespace(
        graph=graph,
        split=split_nodes(graph.y, 0),
        model=build_model(TABLE, graph.x.shape[1], graph.classes),
        table=TABLE,
        make_graph=make_graph,
        key_of=key_of,
        generator=generator,
        options=lambda **changes: Embedding(
            **({"epochs": 120, "optimizer": Adam(learning_rate=0.01), "strength": 20.0} | changes)
        ),
    )
