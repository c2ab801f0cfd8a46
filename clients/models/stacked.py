"""Layers of many clients at once: k clients, v slots for rows or nodes each, in and out units.

Dense products are batched over clients; sparse ones run on one block-diagonal matrix for all of them.
"""

from typing import Any

import torch
from torch import Tensor
from torch_geometric.nn.conv.gcn_conv import gcn_norm

from clients.models.readout import Readout
from clients.models.sparse import Sparse
from fedsim.contracts import Batch, StackedBatch, Tensors


def inputs(batch: StackedBatch) -> Tensor:
    """X as layers take it: rows flattened to [k, b, in]; graphs [k, v, f] or CSR [k v, k f] as they are."""
    x = batch.batch.x
    return x if x.layout == torch.sparse_csr else x.flatten(2)


def linear(batch: StackedBatch, states: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Each client's own linear layer.

    Args:
        batch: of the step; keeps the transpose of sparse inputs.
        states: [k, v, in], or the batch's sparse inputs.
        weight: [k, out, in].
        bias: [k, out].

    Returns:
        [k, v, out].
    """
    if states.layout == torch.sparse_csr:
        flat = _kept(batch, "inputs", _inputs) @ weight.transpose(1, 2).reshape(-1, weight.shape[1])
        product = flat.view(len(weight), -1, weight.shape[1])
        return product if bias is None else product + bias.unsqueeze(1)
    result: Tensor = _Linear.apply(states, weight, bias)  # type: ignore[no-untyped-call]
    return result


class _Linear(torch.autograd.Function):
    """[k, v, in] -> [k, v, out]; its gradients lie in memory as the weights do, for a fast step."""

    @staticmethod
    def forward(ctx: Any, states: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(states, weight)
        if bias is None:
            return torch.bmm(states, weight.transpose(1, 2))
        return torch.baddbmm(bias.unsqueeze(1), states, weight.transpose(1, 2))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        (slope,) = gradients
        states, weight = ctx.saved_tensors
        of_states, of_weight, of_bias = ctx.needs_input_grad
        return (
            torch.bmm(slope, weight) if of_states else None,
            torch.bmm(slope.transpose(1, 2), states) if of_weight else None,
            slope.sum(dim=1) if of_bias else None,
        )


def along(matrix: Sparse, states: Tensor) -> Tensor:
    """A block-diagonal [k m, k v] applied to every client's states [k, v, h]: [k, m, h]."""
    return (matrix @ states.reshape(-1, states.shape[-1])).view(len(states), -1, states.shape[-1])


def layer(tensors: Tensors, name: str, *, bias: bool = True) -> tuple[Tensor, Tensor | None]:
    """The weight and the bias of a linear layer."""
    return tensors[f"{name}.weight"], tensors[f"{name}.bias"] if bias else None


def normalised(batch: StackedBatch) -> Sparse:
    """Kipf and Welling's adjacency with self-loops, each entry 1 / sqrt(degree_i degree_j)."""
    return _kept(batch, "normalised adjacency", _normalised)


def mean_of_neighbours(batch: StackedBatch) -> Sparse:
    """Row i averages the sources of i's incoming edges; without any it is zero."""
    return _kept(batch, "mean of neighbours", _mean_of_neighbours)


def sum_of_neighbours(batch: StackedBatch) -> Sparse:
    """Row i adds up the sources of i's incoming edges."""
    return _kept(batch, "sum of neighbours", lambda one: _adjacency(one, None))


def pooling(batch: StackedBatch, readout: Readout) -> Sparse:
    """[k g, k v]: the sum or the mean over the nodes of each graph."""
    return _kept(batch, f"readout {readout}", lambda one: _pooling(one, readout))


def _kept(batch: StackedBatch, name: str, build: object) -> Sparse:
    found: Sparse = batch.form(name, build)  # type: ignore[arg-type]
    return found


def _places(batch: Batch) -> int:
    return batch.x.shape[0] if batch.x.layout == torch.sparse_csr else batch.x.shape[0] * batch.x.shape[1]


def _inputs(batch: Batch) -> Sparse:
    coordinates = batch.x.to_sparse_coo()  # type: ignore[no-untyped-call]
    rows, columns = coordinates.indices()
    return Sparse.of(rows, columns, coordinates.values(), (batch.x.shape[0], batch.x.shape[1]))


def _adjacency(batch: Batch, values: Tensor | None) -> Sparse:
    sources, targets = _edges(batch)
    places = _places(batch)
    weights = (
        torch.ones(len(sources), dtype=batch.x.dtype, device=sources.device) if values is None else values
    )
    return Sparse.of(targets, sources, weights, (places, places))


def _normalised(batch: Batch) -> Sparse:
    places = _places(batch)
    (sources, targets), weights = gcn_norm(batch.edge_index, num_nodes=places, dtype=batch.x.dtype)
    return Sparse.of(targets, sources, weights, (places, places))


def _mean_of_neighbours(batch: Batch) -> Sparse:
    _, targets = _edges(batch)
    degrees = torch.bincount(targets, minlength=_places(batch))
    return _adjacency(batch, 1 / degrees[targets].to(batch.x.dtype))


def _pooling(batch: Batch, readout: Readout) -> Sparse:
    if batch.graph is None:
        raise TypeError("A readout needs graphs.")
    slots = (batch.graph >= 0).nonzero()[:, 0]
    graphs = batch.graph[slots]
    weights = torch.ones(len(slots), dtype=batch.x.dtype, device=slots.device)
    if readout == "mean":
        weights /= torch.bincount(graphs)[graphs]
    return Sparse.of(graphs, slots, weights, (batch.y.numel(), len(batch.graph)))


def _edges(batch: Batch) -> tuple[Tensor, Tensor]:
    if batch.edge_index is None:
        raise TypeError("A graph model needs edges.")
    return batch.edge_index[0], batch.edge_index[1]
