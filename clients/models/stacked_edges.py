"""What stacked graph models derive from the edges of many clients: one block-diagonal matrix for all."""

import torch
from torch import Tensor
from torch_geometric.nn.conv.gcn_conv import gcn_norm

from clients.models.readout import Readout
from clients.models.sparse import Sparse
from clients.models.stacked_layers import kept
from fedsim.contracts import Batch, StackedBatch


def along(matrix: Sparse, states: Tensor) -> Tensor:
    """A block-diagonal [k m, k v] applied to every client's states [k, v, h]: [k, m, h]."""
    return (matrix @ states.reshape(-1, states.shape[-1])).view(len(states), -1, states.shape[-1])


def normalised(batch: StackedBatch) -> Sparse:
    """Kipf and Welling's adjacency with self-loops, each entry 1 / sqrt(degree_i degree_j)."""
    return kept(batch, "normalised adjacency", _normalised)


def mean_of_neighbours(batch: StackedBatch) -> Sparse:
    """Row i averages the sources of i's incoming edges; without any it is zero."""
    return kept(batch, "mean of neighbours", _mean_of_neighbours)


def sum_of_neighbours(batch: StackedBatch) -> Sparse:
    """Row i adds up the sources of i's incoming edges."""
    return kept(batch, "sum of neighbours", lambda one: _adjacency(one, None))


def pooling(batch: StackedBatch, readout: Readout) -> Sparse:
    """[k g, k v]: the sum or the mean over the nodes of each graph."""
    return kept(batch, f"readout {readout}", lambda one: _pooling(one, readout))


def _places(batch: Batch) -> int:
    return batch.x.shape[0] if batch.x.layout == torch.sparse_csr else batch.x.shape[0] * batch.x.shape[1]


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
