"""The three kinds of examples: rows, the nodes of one graph, and whole graphs.

All are frozen dataclasses of tensors. Splits of many clients are views into one pool, so that an engine
can keep the pool in shared memory; `batch` always makes tensors of its own, which a client may change.
v counts nodes, e directed edges, g graphs, f features, c channels.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from fedsim.contracts import Batch
from fedsim.data.stacked_graphs import StackedGraphs, StackedNodes
from fedsim.data.stacked_rows import Place, StackedRows, stacked_rows


@dataclass(frozen=True)
class Rows:
    """Images, vectors or table rows.

    Attributes:
        x: [n, ...] as stored: uint8 images or floats.
        y: [n] int64.
        mean: shaped to broadcast over one stored input, in units of x; None: 0.
        std: likewise; None: 1. A batch carries (x - mean) / std.
        dtype: floating-point type of a batch's inputs.
        white: what a pixel of full brightness is stored as, black being 0; None: the inputs are no images.
    """

    x: Tensor
    y: Tensor
    mean: Tensor | None = None
    std: Tensor | None = None
    dtype: torch.dtype = torch.float32
    white: float | None = None

    def __len__(self) -> int:
        """The number of rows."""
        return len(self.y)

    def batch(self, index: Tensor | None = None) -> Batch:
        """The rows at `index`, or all of them, normalised."""
        if index is None:
            x, y = self.x.to(self.dtype, copy=True), self.y.clone()
        else:
            x, y = self.x.index_select(0, index).to(self.dtype), self.y.index_select(0, index)
        if self.mean is not None:
            x.sub_(self.mean.to(self.dtype))
        if self.std is not None:
            x.div_(self.std.to(self.dtype))
        return Batch(x, y)

    def labels(self) -> Tensor:
        """[n] int64."""
        return self.y.clone()

    def to(self, device: torch.device, dtype: torch.dtype) -> "Rows":
        """The same rows elsewhere; the stored inputs keep their type, so that nothing is held twice."""
        return replace(
            self,
            x=self.x.to(device),
            y=self.y.to(device),
            mean=None if self.mean is None else self.mean.to(device),
            std=None if self.std is None else self.std.to(device),
            dtype=dtype,
        )

    @property
    def pixels(self) -> tuple[Tensor, Tensor] | None:
        """A black and a white pixel as a batch carries them, float64 [c, 1, 1]; None without images."""
        if self.white is None or self.x.dim() != 4:
            return None
        ends = torch.zeros(self.x.shape[1], 1, 1), torch.full((self.x.shape[1], 1, 1), self.white)
        mean = 0.0 if self.mean is None else self.mean.double().cpu()
        std = 1.0 if self.std is None else self.std.double().cpu()
        black, white = ((end.double() - mean) / std for end in ends)
        return black, white

    @cached_property
    def place(self) -> Place:
        """Where the rows lie in the memory that clients share."""
        return Place.of(self)

    @staticmethod
    def together(parts: Sequence["Rows"]) -> StackedRows | None:
        """The rows of many clients; see `contracts.StackedExamples`."""
        return stacked_rows(parts)

    def part(self, start: int, stop: int) -> "Rows":
        """Rows start..stop-1, as a view."""
        return replace(self, x=self.x[start:stop], y=self.y[start:stop])


@dataclass(frozen=True)
class Nodes:
    """Some nodes of a graph; a model always sees the whole graph.

    Attributes:
        x: [v, f] floats.
        edge_index: [2, e] int64.
        y: [v] int64.
        index: [n] int64, the nodes that count.
        dtype: floating-point type of a batch's inputs.
    """

    x: Tensor
    edge_index: Tensor
    y: Tensor
    index: Tensor
    dtype: torch.dtype = torch.float32

    def __len__(self) -> int:
        """How many nodes count."""
        return len(self.index)

    def batch(self, index: Tensor | None = None) -> Batch:
        """The whole graph; the mask holds the counted nodes at `index`, or all counted nodes."""
        counted = self.index if index is None else self.index.index_select(0, index)
        mask = torch.zeros(len(self.y), dtype=torch.bool, device=self.y.device)
        mask[counted] = True
        x = self.x.to(self.dtype, copy=True)
        return Batch(x, self.y.clone(), mask=mask, edge_index=self.edge_index.clone())

    @property
    def graph(self) -> Hashable:
        """Equal for nodes of one graph in memory: a model is shown the same for them."""
        parts = self.x, self.edge_index
        return self.dtype, *((part.data_ptr(), part.shape) for part in parts)

    def labels(self) -> Tensor:
        """[n] int64, of the nodes that count."""
        return self.y.index_select(0, self.index)

    @cached_property
    def nonzero(self) -> tuple[Tensor, Tensor]:
        """([z, 2] node and feature, [z] value) of all features that are not zero, row by row."""
        places = self.x.nonzero()
        return places, self.x[places[:, 0], places[:, 1]]

    @staticmethod
    def together(parts: Sequence["Nodes"]) -> StackedNodes:
        """The graphs of many clients; see `contracts.StackedExamples`."""
        return StackedNodes(parts)

    def to(self, device: torch.device, dtype: torch.dtype) -> "Nodes":
        """The same nodes elsewhere."""
        names = ("x", "edge_index", "y", "index")
        moved: dict[str, Any] = {name: getattr(self, name).to(device) for name in names}
        return replace(self, dtype=dtype, **moved)


@dataclass(frozen=True)
class Graphs:
    """Many small graphs, laid end to end.

    Attributes:
        x: [v, f] floats, graph after graph.
        edge_index: [2, e] int64, graph after graph; each graph counts its own nodes from 0.
        y: [g] int64.
        node_ends: [g + 1] int64; graph i owns nodes node_ends[i]..node_ends[i + 1], less node_ends[0].
        edge_ends: [g + 1] int64, likewise for edges.
        dtype: floating-point type of a batch's inputs.
    """

    x: Tensor
    edge_index: Tensor
    y: Tensor
    node_ends: Tensor
    edge_ends: Tensor
    dtype: torch.dtype = torch.float32

    def __len__(self) -> int:
        """The number of graphs."""
        return len(self.y)

    def batch(self, index: Tensor | None = None) -> Batch:
        """One block-diagonal graph of the graphs at `index`, in that order, or of all of them."""
        if index is None:
            index = torch.arange(len(self), device=self.y.device)
        nodes, node_counts = _gather(self.node_ends, index)
        edges, edge_counts = _gather(self.edge_ends, index)
        shift = (node_counts.cumsum(0) - node_counts).repeat_interleave(edge_counts)
        graph = torch.arange(len(index), device=index.device).repeat_interleave(node_counts)
        return Batch(
            self.x.index_select(0, nodes).to(self.dtype),
            self.y.index_select(0, index),
            edge_index=self.edge_index.index_select(1, edges).add_(shift),
            graph=graph,
        )

    def labels(self) -> Tensor:
        """[g] int64."""
        return self.y.clone()

    @staticmethod
    def together(parts: Sequence["Graphs"]) -> StackedGraphs:
        """The graphs of many clients; see `contracts.StackedExamples`."""
        return StackedGraphs(parts)

    def to(self, device: torch.device, dtype: torch.dtype) -> "Graphs":
        """The same graphs elsewhere."""
        names = ("x", "edge_index", "y", "node_ends", "edge_ends")
        moved: dict[str, Any] = {name: getattr(self, name).to(device) for name in names}
        return replace(self, dtype=dtype, **moved)

    def part(self, start: int, stop: int) -> "Graphs":
        """Graphs start..stop-1, as a view."""
        node = (self.node_ends[[start, stop]] - self.node_ends[0]).tolist()
        edge = (self.edge_ends[[start, stop]] - self.edge_ends[0]).tolist()
        return replace(
            self,
            x=self.x[node[0] : node[1]],
            edge_index=self.edge_index[:, edge[0] : edge[1]],
            y=self.y[start:stop],
            node_ends=self.node_ends[start : stop + 1],
            edge_ends=self.edge_ends[start : stop + 1],
        )

    def reordered(self, index: Tensor) -> "Graphs":
        """A packed copy of the graphs at `index`, in that order."""
        nodes, node_counts = _gather(self.node_ends, index)
        edges, edge_counts = _gather(self.edge_ends, index)
        return replace(
            self,
            x=self.x.index_select(0, nodes),
            edge_index=self.edge_index.index_select(1, edges),
            y=self.y.index_select(0, index),
            node_ends=_ends(node_counts),
            edge_ends=_ends(edge_counts),
        )


def _gather(ends: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
    """Positions of all members of the blocks at `index`, and the blocks' sizes."""
    starts = ends.index_select(0, index) - ends[0]
    counts = ends.index_select(0, index + 1) - ends[0] - starts
    before = counts.cumsum(0) - counts
    total = int(counts.sum())
    positions = torch.arange(total, device=index.device) + (starts - before).repeat_interleave(counts)
    return positions, counts


def _ends(counts: Tensor) -> Tensor:
    return torch.cat([counts.new_zeros(1), counts.cumsum(0)])
