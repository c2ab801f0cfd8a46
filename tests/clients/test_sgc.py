"""Simplified graph convolution against the dense formula, PyG's layer, and its own stacked form."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch_geometric.nn import SGConv

from clients.models.sgc import Sgc, SgcModel
from fedsim import plugins
from fedsim.contracts import Batch, DataSpec
from fedsim.data.examples import Nodes
from fedsim.errors import ConfigError
from fedsim.training.functional import FunctionalModel

FEATURES, CLASSES = 6, 3
SPEC = DataSpec("nodes", (FEATURES,), CLASSES)
EXACT: dict[str, Any] = {"rtol": 1e-12, "atol": 1e-12}  # float64


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def a_graph(nodes: int, seed: int) -> tuple[Tensor, Tensor]:
    x = torch.randn(nodes, FEATURES, generator=generator(seed), dtype=torch.float64)
    ends = torch.randint(nodes, (2, 2 * nodes), generator=generator(seed + 1))
    ends = ends[:, ends[0] != ends[1]].unique(dim=1)
    return x, torch.cat([ends, ends.flip(0)], dim=1)


def model_of(**options: Any) -> Any:
    model = Sgc(dropout=0.0, **options).build(SPEC).double()
    for parameter in model.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator(3), dtype=torch.float64)
    return model


@pytest.mark.parametrize("hops", [1, 2, 3])
def test_one_layer_is_the_dense_formula(hops: int) -> None:
    x, edges = a_graph(9, 0)
    model = model_of(hops=hops)
    adjacency = torch.eye(9, dtype=torch.float64)
    adjacency.index_put_((edges[1], edges[0]), torch.ones(1, dtype=torch.float64), accumulate=True)
    scale = adjacency.sum(dim=1).rsqrt().diag()
    states = torch.linalg.matrix_power(scale @ adjacency @ scale, hops) @ x
    expected = states @ model.head.lin.weight.T + model.head.bias
    torch.testing.assert_close(model(Batch(x, x[:, 0].long(), edge_index=edges)), expected, **EXACT)


def test_a_convolution_is_that_of_pyg() -> None:
    x, edges = a_graph(12, 4)
    model = model_of(hops=2)
    other = SGConv(FEATURES, CLASSES, K=2).double()
    other.lin.weight.data, other.lin.bias.data = model.head.lin.weight.data, model.head.bias.data
    torch.testing.assert_close(model(Batch(x, x[:, 0].long(), edge_index=edges)), other(x, edges), **EXACT)


@pytest.mark.parametrize("layers", [1, 3])
def test_many_clients_at_once(layers: int) -> None:
    model = model_of(layers=layers, hidden=5)
    parts = [
        Nodes(*a_graph(n, n), torch.zeros(n, dtype=torch.int64), torch.arange(n), torch.float64)
        for n in (7, 4, 9)
    ]
    own = [
        {
            name: torch.randn(value.shape, generator=generator(client), dtype=torch.float64)
            for name, value in model.named_parameters()
        }
        for client in range(3)
    ]
    stacked = {name: torch.stack([one[name] for one in own]) for name in own[0]}
    found = model.forward_stacked(stacked, Nodes.together(parts).batch(range(3), None), None)
    for client, part in enumerate(parts):
        expected, _ = FunctionalModel(model)(own[client], part.batch())
        torch.testing.assert_close(found[client, : len(expected)], expected, **EXACT)


def test_the_table_of_an_experiment_file() -> None:
    assert plugins.build("models", {"kind": "sgc", "hops": 3}, "model") == Sgc(hops=3)
    assert isinstance(Sgc().build(DataSpec("graphs", (4,), 2)), SgcModel)
    with pytest.raises(ConfigError, match="hops must be at least 1, found 0"):
        Sgc(hops=0)
    with pytest.raises(ConfigError, match=r'model\.kind = "sgc" serves nodes and graphs'):
        Sgc().build(DataSpec("rows", (4,), 2))
