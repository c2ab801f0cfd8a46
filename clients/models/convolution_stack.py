"""Graph convolutions one after the other: the common frame of GCN and GraphSAGE."""

from collections.abc import Callable
from itertools import pairwise

import torch
from torch import Tensor, nn

from clients.models.dropout import draw_masks, drop
from clients.models.graph_table import GraphTable
from clients.models.readout import Readout, read_out
from clients.models.stacked_edges import along, pooling
from clients.models.stacked_layers import inputs, layer, linear
from fedsim.contracts import Batch, DataSpec, StackedBatch, Tensors


class ConvolutionStack(nn.Module):
    """Nodes: [v, f] -> [v, classes], the last convolution is the head. Graphs: [v, f] -> [g, classes].

    Args:
        convolution: (width in, width out) -> a module called as `module(states, *edges(batch))`.
        spec: nodes or graphs.
        hidden: units of every hidden state.
        layers: convolutions, the head included if it is one.
        dropout: share of hidden units dropped in training, after every hidden convolution.
        readout: how a graph's node states become one.
    """

    def __init__(
        self,
        convolution: Callable[[int, int], nn.Module],
        spec: DataSpec,
        *,
        hidden: int,
        layers: int,
        dropout: float,
        readout: Readout,
    ) -> None:
        super().__init__()
        self.on_graphs = spec.task == "graphs"
        below = layers if self.on_graphs else layers - 1
        widths = (*spec.shape, *[hidden] * below)
        self.convolutions = nn.ModuleList(convolution(a, b) for a, b in pairwise(widths))
        head = nn.Linear if self.on_graphs else convolution
        self.head = head(widths[-1], spec.classes)
        self.dropout = dropout
        self.readout: Readout = readout
        self.masks = {f"dropout.{index}": hidden for index in range(below)}

    @classmethod
    def of(
        cls, table: GraphTable, convolution: Callable[[int, int], nn.Module], spec: DataSpec
    ) -> "ConvolutionStack":
        """The stack that a model's table describes."""
        return cls(
            convolution,
            spec,
            hidden=table.hidden,
            layers=table.layers,
            dropout=table.dropout,
            readout=table.readout,
        )

    def edges(self, batch: Batch) -> tuple[Tensor | None, ...]:
        """What a convolution is given besides the states."""
        return (batch.edge_index,)

    def forward(self, batch: Batch, noise: Tensors | None = None) -> Tensor:
        """Logits, with the masks of `noise` after each hidden convolution."""
        states, edges = batch.x, self.edges(batch)
        for convolution, name in zip(self.convolutions, self.masks, strict=True):
            states = drop(convolution(states, *edges).relu(), noise, name)
        if self.on_graphs:
            logits: Tensor = self.head(read_out(states, batch, self.readout))
        else:
            logits = self.head(states, *edges)
        return logits

    def convolve(self, tensors: Tensors, name: str, states: Tensor, batch: StackedBatch) -> Tensor:
        """One convolution of k clients: [k, v, in], or sparse inputs, -> [k, v, out]."""
        raise NotImplementedError(f"{type(self).__name__} has no stacked convolution")

    def forward_stacked(self, tensors: Tensors, batch: StackedBatch, noise: Tensors | None) -> Tensor:
        """[k, v, classes] or [k, g, classes] for k clients."""
        states = inputs(batch)
        for index, name in enumerate(self.masks):
            states = self.convolve(tensors, f"convolutions.{index}", states, batch)
            states = drop(states.relu(), noise, name)
        if not self.on_graphs:
            return self.convolve(tensors, "head", states, batch)
        return linear(batch, along(pooling(batch, self.readout), states), *layer(tensors, "head"))

    def draw(self, batch: Batch, rng: torch.Generator) -> dict[str, Tensor]:
        """One mask [v, hidden] per hidden convolution."""
        return draw_masks(self.masks, self.dropout, batch.x, rng)
