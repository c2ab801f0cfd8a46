"""Nodes and graphs of many clients, side by side: every client has v slots for its nodes.

Slots beyond a client's own nodes are empty: no edge reaches them, no graph owns them, and no label counts
there. k clients, v slots each, f features, g graphs of the client with most.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedsim.contracts import Batch, StackedBatch
from fedsim.data.compressed import compressed

if TYPE_CHECKING:
    from fedsim.data.examples import Graphs, Nodes

SPARSE_BELOW = 0.1  # share of features that are not zero; above, a dense product is faster
_IGNORED = -100  # the label that torch's cross-entropy leaves out by default


@dataclass(frozen=True)
class StackedNodes:
    """One graph per client, always shown whole.

    Attributes:
        parts: the clients' nodes.
        ragged: yes: clients with different numbers of counted nodes take a step together.
    """

    parts: Sequence["Nodes"]
    ragged: bool = True

    def batch(self, rows: Sequence[int], index: Tensor | None) -> StackedBatch:
        """The graphs of clients `rows`; the mask holds the counted nodes at `index`, or all of them."""
        if len(rows) < len(self.parts):
            return StackedNodes([self.parts[row] for row in rows]).batch(range(len(rows)), index)
        if index is None:
            return self._whole
        mask = torch.zeros_like(self._whole.batch.y, dtype=torch.bool)
        for part, row, places in zip(self.parts, mask, index, strict=True):
            row[part.index[places]] = True
        return replace(self._whole, batch=self._whole.batch._replace(mask=mask))

    def own(self, row: int, index: Tensor | None) -> Batch:
        """The graph of one client."""
        part = self.parts[row]
        mask = torch.zeros(len(part.y), dtype=torch.bool, device=part.y.device)
        mask[part.index if index is None else part.index[index]] = True
        return Batch(part.x.to(part.dtype), part.y, mask=mask, edge_index=part.edge_index)

    @cached_property
    def _whole(self) -> StackedBatch:
        parts, slots = self.parts, max(len(part.y) for part in self.parts)
        y = parts[0].y.new_full((len(parts), slots), _IGNORED)
        mask = torch.zeros_like(y, dtype=torch.bool)
        for row, part in enumerate(parts):
            y[row, : len(part.y)] = part.y
            mask[row, part.index] = True
        nodes = _slots_of([len(part.y) for part in parts], slots, y.device)
        edges = torch.cat([part.edge_index + row * slots for row, part in enumerate(parts)], dim=1)
        features = _Features(len(parts), slots, parts[0].x.shape[1], parts[0].dtype)
        places, values = [part.nonzero[0] for part in parts], [part.nonzero[1] for part in parts]
        x = features.of([part.x for part in parts], places, values, nodes)
        return StackedBatch(Batch(x, y, mask=mask, edge_index=edges), slots)


@dataclass(frozen=True)
class StackedGraphs:
    """Many small graphs per client.

    Attributes:
        parts: the clients' graphs.
        ragged: yes.
    """

    parts: Sequence["Graphs"]
    ragged: bool = True
    _kept: list[StackedBatch] = field(default_factory=list)

    def batch(self, rows: Sequence[int], index: Tensor | None) -> StackedBatch:
        """The graphs at `index` of clients `rows`."""
        if index is not None:
            return self._batch([self.parts[row].batch(own) for row, own in zip(rows, index, strict=True)])
        if len(rows) < len(self.parts):
            return self._batch([self.parts[row].batch() for row in rows])
        if not self._kept:
            self._kept.append(self._batch([part.batch() for part in self.parts]))
        return self._kept[0]

    def own(self, row: int, index: Tensor | None) -> Batch:
        """The graphs of one client."""
        return self.parts[row].batch(index)

    def _batch(self, own: Sequence[Batch]) -> StackedBatch:
        slots, most = max(len(one.x) for one in own), max(len(one.y) for one in own)
        first = own[0]
        y = first.y.new_full((len(own), most), _IGNORED)
        graph = first.y.new_full((len(own), slots), -1)
        edges = []
        for row, one in enumerate(own):
            if one.graph is None or one.edge_index is None:
                raise TypeError("Graphs make batches of edges and owners.")
            y[row, : len(one.y)] = one.y
            graph[row, : len(one.graph)] = one.graph + row * most
            edges.append(one.edge_index + row * slots)
        nodes = _slots_of([len(one.x) for one in own], slots, y.device)
        features = _Features(len(own), slots, first.x.shape[1], first.x.dtype)
        places = [one.x.nonzero() for one in own]
        values = [one.x[place[:, 0], place[:, 1]] for one, place in zip(own, places, strict=True)]
        x = features.of([one.x for one in own], places, values, nodes)
        batch = Batch(x, y, edge_index=torch.cat(edges, dim=1), graph=graph.reshape(-1))
        return StackedBatch(batch, slots)


@dataclass(frozen=True)
class _Features:
    """How features are laid out: k clients, v slots, f features."""

    clients: int
    slots: int
    width: int
    dtype: torch.dtype

    def of(
        self, dense: Sequence[Tensor], places: Sequence[Tensor], values: Sequence[Tensor], nodes: Tensor
    ) -> Tensor:
        """[k, v, f], or a CSR matrix [k v, k f] with a block per client where most features are zero."""
        filled = sum(len(place) for place in places)
        if filled < SPARSE_BELOW * len(nodes) * self.width:
            return self._blocks(places, values)
        x = torch.zeros(self.clients * self.slots, self.width, dtype=self.dtype, device=nodes.device)
        x[nodes] = torch.cat([one.to(self.dtype) for one in dense])
        return x.view(self.clients, self.slots, self.width)

    def _blocks(self, places: Sequence[Tensor], values: Sequence[Tensor]) -> Tensor:
        rows = torch.cat([place[:, 0] + row * self.slots for row, place in enumerate(places)])
        columns = torch.cat([place[:, 1] + row * self.width for row, place in enumerate(places)])
        shape = (self.clients * self.slots, self.clients * self.width)
        return compressed(rows, columns, torch.cat(list(values)).to(self.dtype), shape)


def _slots_of(counts: Sequence[int], slots: int, device: torch.device) -> Tensor:
    """[all nodes] int64, the slot of each node, client after client."""
    return torch.cat([torch.arange(count, device=device) + row * slots for row, count in enumerate(counts)])
