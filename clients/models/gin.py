"""Graph isomorphism network.

Xu et al., "How Powerful are Graph Neural Networks?", ICLR 2019: equation 4.1 for a layer, equation 4.2
for the readout, which joins the states of all layers, the inputs among them. No BatchNorm between the
layers, unlike the paper's experiments: its statistics would differ from client to client.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch_geometric.nn import GINConv

from clients.models.dropout import draw_masks, drop
from clients.models.graph_table import GraphTable
from clients.models.readout import Readout, read_out
from clients.models.stacked_edges import along, pooling, sum_of_neighbours
from clients.models.stacked_layers import inputs, linear
from fedsim.contracts import Batch, DataSpec, StackedBatch, Tensors


@dataclass(frozen=True, kw_only=True)
class Gin(GraphTable):
    """Sum aggregation, each layer a perceptron with one hidden layer; a linear head on all layers.

    Attributes:
        layers: convolutions.
        dropout: share of each layer's output units dropped in training.
        learn_eps: train the weight 1 + eps of a node's own state (GIN-eps); else eps = 0 (GIN-0).
        readout: how a graph's node states become one; of no effect on nodes.
    """

    name: ClassVar[str] = "gin"

    layers: int = 3
    dropout: float = 0.0
    learn_eps: bool = False
    readout: Readout = "sum"

    def module(self, spec: DataSpec) -> nn.Module:
        """Convolutions, and a head that sees the states of all layers."""
        return GinModel(self, spec)


def perceptron(features: int, hidden: int) -> nn.Module:
    """[v, features] -> [v, hidden], one hidden layer."""
    return nn.Sequential(nn.Linear(features, hidden), nn.ReLU(), nn.Linear(hidden, hidden))


class GinModel(nn.Module):
    """[v, f] -> [v, classes] on nodes, [g, classes] on graphs."""

    def __init__(self, table: Gin, spec: DataSpec) -> None:
        super().__init__()
        widths = (*spec.shape, *[table.hidden] * table.layers)
        self.features, self.hidden = spec.shape[0], table.hidden
        self.convolutions = nn.ModuleList(
            GINConv(perceptron(a, b), train_eps=table.learn_eps) for a, b in pairwise(widths)
        )
        self.head = nn.Linear(sum(widths), spec.classes)
        self.on_graphs = spec.task == "graphs"
        self.readout: Readout = table.readout
        self.dropout = table.dropout
        self.masks = {f"dropout.{index}": table.hidden for index in range(table.layers)}

    def forward(self, batch: Batch, noise: Tensors | None = None) -> Tensor:
        """Logits, with the masks of `noise` after each convolution."""
        states = [batch.x]
        for convolution, name in zip(self.convolutions, self.masks, strict=True):
            states.append(drop(convolution(states[-1], batch.edge_index).relu(), noise, name))
        joined = torch.cat(states, dim=1)
        if self.on_graphs:
            joined = read_out(joined, batch, self.readout)
        logits: Tensor = self.head(joined)
        return logits

    def forward_stacked(self, tensors: Tensors, batch: StackedBatch, noise: Tensors | None) -> Tensor:
        """[k, v, classes] or [k, g, classes] for k clients; the head runs before the readout, as both add."""
        states = inputs(batch)
        hidden = self.head.in_features - self.features
        pieces = tensors["head.weight"].tensor_split(
            [self.features + i for i in range(0, hidden, self.hidden)], 2
        )
        logits = linear(batch, states, pieces[0])
        for index, (name, piece) in enumerate(zip(self.masks, pieces[1:], strict=True)):
            states = drop(self._convolve(tensors, f"convolutions.{index}", states, batch), noise, name)
            logits = logits + linear(batch, states, piece)
        if self.on_graphs:
            logits = along(pooling(batch, self.readout), logits)
        return logits + tensors["head.bias"].unsqueeze(1)

    def _convolve(self, tensors: Tensors, name: str, states: Tensor, batch: StackedBatch) -> Tensor:
        weight, bias = tensors[f"{name}.nn.0.weight"], tensors[f"{name}.nn.0.bias"]
        projected = linear(batch, states, weight)
        own = (1 + tensors[f"{name}.eps"]).unsqueeze(2) * projected
        hidden = (own + along(sum_of_neighbours(batch), projected) + bias.unsqueeze(1)).relu()
        second, shift = tensors[f"{name}.nn.2.weight"], tensors[f"{name}.nn.2.bias"]
        return linear(batch, hidden, second, shift).relu()

    def draw(self, batch: Batch, rng: torch.Generator) -> dict[str, Tensor]:
        """One mask [v, hidden] per convolution."""
        return draw_masks(self.masks, self.dropout, batch.x, rng)
