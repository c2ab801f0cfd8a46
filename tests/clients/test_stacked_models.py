"""`forward_stacked` against the model itself, one client at a time."""

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from clients.models.gcn import Gcn
from clients.models.gin import Gin
from clients.models.logistic import Logistic
from clients.models.mlp import Mlp
from clients.models.sage import Sage
from clients.models.sparse import Sparse
from clients.models.stacked_layers import linear
from fedsim.contracts import Batch, DataSpec
from fedsim.data.examples import Graphs, Nodes
from fedsim.training.functional import FunctionalModel, model_tensors

EXACT: dict[str, Any] = {"rtol": 1e-12, "atol": 1e-12}  # float64
FEATURES, CLASSES = 20, 3
SIZES = (7, 4, 1, 9)


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def features(nodes: int, share: float, seed: int) -> Tensor:
    kept = torch.rand(nodes, FEATURES, generator=generator(seed)) < share
    return torch.randn(nodes, FEATURES, generator=generator(seed + 1), dtype=torch.float64) * kept


def edges(nodes: int, seed: int) -> Tensor:
    """Directed, with self-loops and repeated edges; some nodes have none."""
    return torch.randint(nodes, (2, nodes), generator=generator(seed))


def nodes(share: float) -> list[Nodes]:
    return [
        Nodes(features(n, share, n), edges(n, n), torch.zeros(n).long(), torch.arange(n), torch.float64)
        for n in SIZES
    ]


def graphs(share: float) -> list[Graphs]:
    parts = []
    for client, count in enumerate(SIZES):
        sizes = [1 + (client + i) % 4 for i in range(count)]
        ends = torch.tensor([0, *sizes]).cumsum(0)
        own = [edges(n, 10 * client + i) for i, n in enumerate(sizes)]
        x = features(sum(sizes), share, client)
        parts.append(Graphs(x, torch.cat(own, dim=1), torch.zeros(count).long(), ends, ends, torch.float64))
    return parts


@dataclass(frozen=True)
class Own:
    """Each client's tensors, alone and stacked."""

    alone: list[dict[str, Tensor]]
    stacked: dict[str, Tensor]

    @classmethod
    def of(cls, model: Any, clients: int) -> "Own":
        rng, alone = generator(3), []
        for _ in range(clients):
            drawn = {
                name: torch.randn(value.shape, generator=rng, dtype=torch.float64).requires_grad_()
                for name, value in model_tensors(model).items()
            }
            alone.append(drawn)
        return cls(alone, {name: torch.stack([one[name] for one in alone]) for name in alone[0]})


def compare(model: Any, parts: Any) -> None:
    """Logits and gradients of every client, under noise."""
    own = Own.of(model, len(parts))
    stack = type(parts[0]).together(parts)
    batch = stack.batch(range(len(parts)), None)
    noises = [model.draw(part.batch(), generator(i)) for i, part in enumerate(parts)]
    slots = batch.slots
    padded = {
        name: torch.stack(
            [
                torch.cat([one[name], torch.zeros(slots - len(one[name]), one[name].shape[1])])
                for one in noises
            ]
        )
        for name in noises[0]
    }
    found = model.forward_stacked(own.stacked, batch, padded or None)
    for client, part in enumerate(parts):
        single: Batch = part.batch()
        expected, _ = FunctionalModel(model)(own.alone[client], single, noises[client])
        torch.testing.assert_close(found[client, : len(expected)], expected, **EXACT)
        slopes = torch.autograd.grad(
            expected.square().sum(), list(own.alone[client].values()), allow_unused=True
        )
        stacked = torch.autograd.grad(
            found[client, : len(expected)].square().sum(),
            list(own.alone[client].values()),
            retain_graph=True,
            allow_unused=True,
        )
        for one, other in zip(stacked, slopes, strict=True):
            if other is not None:
                torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-11)


MODELS = [
    Gcn(hidden=4),
    Gcn(hidden=4, layers=1),
    Gcn(hidden=4, layers=3, readout="sum"),
    Sage(hidden=4),
    Sage(hidden=4, normalize=True, dropout=0.0),
    Gin(hidden=4, dropout=0.3),
    Gin(hidden=4, learn_eps=True, readout="mean"),
]


@pytest.mark.parametrize("share", [0.9, 0.05])
@pytest.mark.parametrize("table", [*MODELS, Mlp(hidden=(4, 5), dropout=0.3), Logistic()], ids=str)
def test_nodes_of_many_clients(table: Any, share: float) -> None:
    model = table.build(DataSpec("nodes", (FEATURES,), CLASSES)).double()
    compare(model, nodes(share))


@pytest.mark.parametrize("share", [0.9, 0.05])
@pytest.mark.parametrize("table", MODELS, ids=str)
def test_graphs_of_many_clients(table: Any, share: float) -> None:
    model = table.build(DataSpec("graphs", (FEATURES,), CLASSES)).double()
    compare(model, graphs(share))


def test_sparse_inputs_are_used_below_a_tenth() -> None:
    for share, layout in ((0.9, torch.strided), (0.05, torch.sparse_csr)):
        batch = Nodes.together(nodes(share)).batch(range(len(SIZES)), None)
        assert batch.batch.x.layout == layout


def test_a_sparse_product_adds_repeated_entries_and_has_a_gradient() -> None:
    rows, columns = torch.tensor([2, 0, 2, 2]), torch.tensor([1, 0, 1, 3])
    values = torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=torch.float64)
    dense = torch.zeros(3, 4, dtype=torch.float64).index_put((rows, columns), values, accumulate=True)
    states = torch.randn(4, 2, dtype=torch.float64, generator=generator(0)).requires_grad_()
    sparse = Sparse.of(rows, columns, values, (3, 4))
    torch.testing.assert_close(sparse @ states, dense @ states, **EXACT)
    assert torch.autograd.gradcheck(lambda one: sparse @ one, (states,))


def test_wide_weights_meet_sparse_inputs_client_by_client() -> None:
    parts = nodes(0.05)
    batch = Nodes.together(parts).batch(range(len(parts)), None)
    assert batch.batch.x.layout == torch.sparse_csr
    width = 2**14 // FEATURES + 1
    weight = torch.randn(len(parts), width, FEATURES, generator=generator(3), dtype=torch.float64)
    leaf, same = weight.clone().requires_grad_(), weight.clone().requires_grad_()
    dense = batch.batch.x.to_dense().view(len(parts), -1, len(parts), FEATURES)
    blocks = torch.stack([dense[place, :, place] for place in range(len(parts))])
    found, expected = linear(batch, batch.batch.x, leaf), blocks @ same.transpose(1, 2)
    torch.testing.assert_close(found, expected, **EXACT)
    slope = torch.randn(expected.shape, generator=generator(4), dtype=torch.float64)
    found.backward(slope)
    expected.backward(slope)
    torch.testing.assert_close(leaf.grad, same.grad, **EXACT)
