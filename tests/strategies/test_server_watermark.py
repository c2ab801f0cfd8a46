"""A server that presses its key into the model after every round."""

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor

with warnings.catch_warnings():  # PyG compiles a class while it is imported, which torch 2.13 deprecates
    warnings.simplefilter("ignore", DeprecationWarning)
    import torch_geometric.nn  # noqa: F401

from clients.models.sage import Sage
from fedsim import plugins
from fedsim.contracts import DataSpec, Server
from fedsim.errors import ConfigError, RoundError
from fedsim.params import Layout
from fedsim.run.atomic_files import save_tensors
from fedsim.training.functional import model_tensors
from fedsim.training.template import SeededModel
from fedsim.watermark.forward import GraphModel
from fedsim.watermark.key import key_text, make_key
from fedsim.watermark.stored_model import tensors_suspect
from fedsim.watermark.subgraphs import Graph, draw_sets
from fedsim.watermark.verification import verify
from strategies.watermark import Watermark

FEATURES, CLASSES, NODES = 120, 4, 300


@pytest.fixture
def owned(tmp_path: Any) -> Any:
    """(plugin's table, key, graph): files of the owner's."""
    rng = torch.Generator().manual_seed(0)
    y = torch.randint(CLASSES, (NODES,), generator=rng)
    rates = 0.05 + 0.3 * torch.rand(CLASSES, FEATURES, generator=rng)
    x = (torch.rand(NODES, FEATURES, generator=rng) < rates[y]).float()
    edges = torch.randint(NODES, (2, 1200), generator=rng)
    graph = Graph(x, edges, y, CLASSES)
    sets = draw_sets(torch.arange(NODES), 4, 12, rng)
    key = make_key(graph, sets, owner="Ada", date="2026-01-31", secret="5a" * 32, marks=60)
    (tmp_path / "key.json").write_text(key_text(key))
    save_tensors(tmp_path / "data.safetensors", {"x": x, "edge_index": edges, "y": y})
    table = {
        "key": str(tmp_path / "key.json"),
        "data": str(tmp_path / "data.safetensors"),
        "model": {"kind": "sage", "hidden": 24, "dropout": 0.0},
    }
    return table, key, graph


def vector_of(dtype: torch.dtype) -> tuple[Any, Layout, Tensor]:
    model = SeededModel(Sage(hidden=24, dropout=0.0), 3, dtype).build(DataSpec("nodes", (FEATURES,), CLASSES))
    layout = Layout.of(model_tensors(model))
    return model, layout, layout.flatten(model_tensors(model))


def server(vector: Tensor) -> Server:
    return Server(model=vector, rng=torch.Generator())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_refined_model_carries_the_key_and_answers_much_as_before(owned: Any, dtype: torch.dtype) -> None:
    table, key, graph = owned
    plugin = plugins.build(
        "after", {"kind": "watermark", "steps": 60, **table}, "strategy.after[0]", rounds=3
    )
    model, layout, vector = vector_of(dtype)
    found = plugin.refine(vector, 1, layout, server(vector))
    assert found.dtype == dtype
    assert found.shape == vector.shape
    before, after = (layout.unflatten(one, {}) for one in (vector, found))
    wide = Graph(graph.x.to(dtype), graph.edge_index, graph.y, CLASSES)
    judged = [verify(key, wide, tensors_suspect("m", model, one), null_sets=0) for one in (before, after)]
    assert not judged[0].marked
    assert judged[1].marked
    whole = GraphModel(model, wide.x, wide.edge_index)
    told = [whole.probabilities(one) for one in (before, after)]
    moved = (told[0] - told[1]).abs().mean()
    assert moved < 0.1


def test_after_the_last_round_the_model_is_left_alone(owned: Any) -> None:
    table, _, _ = owned
    plugin = plugins.build("after", {"kind": "watermark", "last_round": 2, **table}, "after", rounds=3)
    _, layout, vector = vector_of(torch.float32)
    assert plugin.refine(vector, 3, layout, server(vector)) is vector


def test_another_model_is_refused(owned: Any) -> None:
    table, _, _ = owned
    plugin = plugins.build("after", {"kind": "watermark", **table}, "after", rounds=3)
    _, layout, vector = vector_of(torch.float32)
    narrow = Layout(layout.floats[1:], ())
    with pytest.raises(RoundError, match="its model is not the federation's"):
        plugin.refine(vector[: narrow.size], 1, narrow, server(vector))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"steps": 0}, "steps must be at least 1, found 0"),
        ({"strength": 0.0}, "strength must be above 0 and finite, found 0.0"),
        ({"margin": -1.0}, "margin must be at least 0 and finite, found -1.0"),
        ({"margin": float("nan")}, "margin must be at least 0 and finite, found nan"),
        ({"strength": float("inf")}, "strength must be above 0 and finite, found inf"),
    ],
)
def test_values_out_of_range_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Watermark(key="k", data="d", model=Sage(), **changes)
