"""GCN, GraphSAGE and GIN against dense matrix formulas written from the papers."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from clients.models.gcn import Gcn
from clients.models.gin import Gin
from clients.models.sage import Sage
from fedsim.contracts import Batch, DataSpec

NODES = DataSpec("nodes", (5,), 3)
GRAPHS = DataSpec("graphs", (5,), 3)
ALL = [Gcn, Sage, Gin]
EXACT: dict[str, Any] = {"rtol": 1e-12, "atol": 1e-12}  # float64


def graph(nodes: int, seed: int) -> tuple[Tensor, Tensor]:
    """Features [v, 5] and a random undirected adjacency [v, v]; the last node has no neighbour."""
    rng = torch.Generator().manual_seed(seed)
    upper = torch.triu(torch.rand(nodes, nodes, generator=rng) < 0.4, diagonal=1)
    upper[:, -1] = False
    adjacency = (upper | upper.T).double()
    return torch.randn(nodes, 5, dtype=torch.float64, generator=rng), adjacency


def batch_of(x: Tensor, adjacency: Tensor) -> Batch:
    return Batch(x, torch.zeros(len(x), dtype=torch.int64), None, adjacency.nonzero().T.contiguous())


def batch_of_graphs(parts: list[tuple[Tensor, Tensor]]) -> Batch:
    """Block-diagonal: one batch of all graphs."""
    starts = [0]
    for x, _ in parts:
        starts.append(starts[-1] + len(x))
    return Batch(
        torch.cat([x for x, _ in parts]),
        torch.zeros(len(parts), dtype=torch.int64),
        None,
        torch.cat([a.nonzero().T + start for (_, a), start in zip(parts, starts[:-1], strict=True)], dim=1),
        torch.repeat_interleave(torch.arange(len(parts)), torch.tensor([len(x) for x, _ in parts])),
    )


def built(table: Any, spec: DataSpec) -> Any:
    torch.manual_seed(3)
    model = table.build(spec).double()
    for parameter in model.parameters():  # biases too, which start at zero
        torch.nn.init.normal_(parameter, std=0.5)
    return model


def gcn_layer(x: Tensor, adjacency: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Kipf and Welling, equation 2, with A~ = A + I."""
    looped = adjacency + torch.eye(len(x), dtype=x.dtype)
    scale = torch.diag(looped.sum(dim=1) ** -0.5)
    return scale @ looped @ scale @ x @ weight.T + bias


def sage_layer(x: Tensor, adjacency: Tensor, own: Tensor, other: Tensor, bias: Tensor) -> Tensor:
    """Hamilton et al., Algorithm 1, lines 4 and 5; the mean over no neighbours is zero."""
    rows = []
    for node in range(len(x)):
        neighbours = x[adjacency[node] > 0]
        mean = neighbours.mean(dim=0) if len(neighbours) else torch.zeros_like(x[0])
        rows.append(own @ x[node] + other @ mean + bias)
    return torch.stack(rows)


def gin_layer(x: Tensor, adjacency: Tensor, perceptron: Callable[[Tensor], Tensor], eps: float) -> Tensor:
    """Xu et al., equation 4.1."""
    return perceptron((1 + eps) * x + adjacency @ x)


def test_gcn_on_nodes_follows_equation_2() -> None:
    x, adjacency = graph(7, seed=0)
    model = built(Gcn(hidden=4), NODES)
    w = dict(model.named_parameters())
    hidden = gcn_layer(x, adjacency, w["convolutions.0.lin.weight"], w["convolutions.0.bias"]).relu()
    expected = gcn_layer(hidden, adjacency, w["head.lin.weight"], w["head.bias"])
    torch.testing.assert_close(model(batch_of(x, adjacency)), expected, **EXACT)


def test_gcn_counts_a_self_loop_of_the_data_once() -> None:
    x, adjacency = graph(6, seed=4)
    model, looped = built(Gcn(hidden=4), NODES), adjacency + torch.eye(6).double()
    torch.testing.assert_close(model(batch_of(x, looped)), model(batch_of(x, adjacency)), **EXACT)


def test_gcn_remembers_no_graph() -> None:
    model = built(Gcn(hidden=4), NODES)
    first, second = batch_of(*graph(7, seed=0)), batch_of(*graph(7, seed=1))
    before = model(first)
    assert not torch.equal(before, model(second))
    assert torch.equal(before, model(first))


@pytest.mark.parametrize("normalize", [False, True])
def test_sage_on_nodes_follows_algorithm_1(normalize: bool) -> None:
    x, adjacency = graph(7, seed=1)
    model = built(Sage(hidden=4, normalize=normalize), NODES)
    w = dict(model.named_parameters())

    def layer(states: Tensor, name: str) -> Tensor:
        own, other = w[f"{name}.lin_r.weight"], w[f"{name}.lin_l.weight"]
        out = sage_layer(states, adjacency, own, other, w[f"{name}.lin_l.bias"])
        return out / out.norm(dim=1, keepdim=True) if normalize else out

    expected = layer(layer(x, "convolutions.0").relu(), "head")
    torch.testing.assert_close(model(batch_of(x, adjacency)), expected, **EXACT)


@pytest.mark.parametrize("readout", ["sum", "mean"])
@pytest.mark.parametrize("learn_eps", [False, True])
def test_gin_on_a_graph_follows_equations_4_1_and_4_2(readout: str, learn_eps: bool) -> None:
    x, adjacency = graph(6, seed=2)
    table = Gin(hidden=4, layers=2, readout=readout, learn_eps=learn_eps)  # type: ignore[arg-type]
    model = built(table, GRAPHS)
    w = dict(model.named_parameters())
    states = [x]
    for layer in range(2):
        name = f"convolutions.{layer}"

        def perceptron(inputs: Tensor, name: str = name) -> Tensor:
            inner = (inputs @ w[f"{name}.nn.0.weight"].T + w[f"{name}.nn.0.bias"]).relu()
            return inner @ w[f"{name}.nn.2.weight"].T + w[f"{name}.nn.2.bias"]

        eps = w[f"{name}.eps"].item() if learn_eps else 0.0
        states.append(gin_layer(states[-1], adjacency, perceptron, eps).relu())
    joined = torch.cat(states, dim=1)
    pooled = joined.sum(dim=0) if readout == "sum" else joined.sum(dim=0) / len(x)
    expected = w["head.weight"] @ pooled + w["head.bias"]
    torch.testing.assert_close(model(batch_of_graphs([(x, adjacency)]))[0], expected, **EXACT)


@pytest.mark.parametrize("kind", ALL)
@pytest.mark.parametrize("layers", [1, 3])
def test_nodes_renumbered_give_rows_renumbered(kind: Any, layers: int) -> None:
    x, adjacency = graph(9, seed=5)
    model = built(kind(hidden=4, layers=layers), NODES)
    order = torch.randperm(9, generator=torch.Generator().manual_seed(0))
    renumbered = batch_of(x[order], adjacency[order][:, order])
    torch.testing.assert_close(model(renumbered), model(batch_of(x, adjacency))[order], **EXACT)


@pytest.mark.parametrize("kind", ALL)
@pytest.mark.parametrize("readout", ["sum", "mean"])
def test_a_batch_of_graphs_equals_one_graph_at_a_time(kind: Any, readout: str) -> None:
    model = built(kind(hidden=4, layers=2, readout=readout), GRAPHS)
    parts = [graph(nodes, seed=nodes) for nodes in (4, 1, 7)]
    alone = torch.cat([model(batch_of_graphs([part])) for part in parts])
    assert alone.shape == (3, 3)
    torch.testing.assert_close(model(batch_of_graphs(parts)), alone, **EXACT)


@pytest.mark.parametrize("kind", ALL)
@pytest.mark.parametrize("spec", [NODES, GRAPHS])
def test_graphs_without_edges_are_legal(kind: Any, spec: DataSpec) -> None:
    part = (graph(3, seed=0)[0], torch.zeros(3, 3).double())
    batch = batch_of_graphs([part]) if spec is GRAPHS else batch_of(*part)
    assert torch.isfinite(built(kind(hidden=4), spec)(batch)).all()


@pytest.mark.parametrize("kind", ALL)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_functional_calls_repeat_to_the_bit_and_change_nothing(kind: Any, dtype: torch.dtype) -> None:
    model = built(kind(hidden=8), NODES).to(dtype)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    x, adjacency = graph(30, seed=6)
    batch = batch_of(x.to(dtype), adjacency)
    tensors = {name: (value + 0.1).detach().requires_grad_() for name, value in model.named_parameters()}
    noise = model.draw(batch, torch.Generator().manual_seed(0))

    def run() -> tuple[Tensor, ...]:
        logits = torch.func.functional_call(model, tensors, (batch, noise))
        return logits, *torch.autograd.grad(logits.square().sum(), list(tensors.values()))

    first, second = run(), run()
    assert all(value.dtype == dtype for value in first)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize("kind", ALL)
def test_gradients_are_those_of_finite_differences(kind: Any) -> None:
    model = built(kind(hidden=3, layers=2), GRAPHS)
    batch = batch_of_graphs([graph(4, seed=7), graph(3, seed=8)])
    name = "head.weight"
    weight = model.state_dict()[name].clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda w: torch.func.functional_call(model, {name: w}, (batch,)), weight)


@pytest.mark.parametrize("kind", ALL)
def test_masks_cover_hidden_states_of_every_layer_below_the_head(kind: Any) -> None:
    x, adjacency = graph(6, seed=0)
    on_nodes = kind(hidden=4, layers=3, dropout=0.5).build(NODES)
    noise = on_nodes.draw(batch_of(x, adjacency), torch.Generator().manual_seed(0))
    assert {tuple(mask.shape) for mask in noise.values()} == {(6, 4)}
    assert len(noise) == (3 if kind is Gin else 2)  # GIN has a linear head above its convolutions


@pytest.mark.parametrize("kind", ALL)
def test_a_mask_of_zeros_leaves_what_the_head_makes_of_nothing(kind: Any) -> None:
    model = built(kind(hidden=4, layers=2, dropout=0.5), GRAPHS)
    batch = batch_of_graphs([graph(4, seed=1), graph(5, seed=2)])
    noise = {name: mask * 0 for name, mask in model.draw(batch, torch.Generator().manual_seed(0)).items()}
    silent = batch._replace(x=batch.x * 0) if kind is Gin else batch  # its head sees the inputs too
    expected = model.head.bias.expand(2, 3)
    torch.testing.assert_close(model(silent, noise), expected, **EXACT)
