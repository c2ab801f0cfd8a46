"""The frame of models with decoupled weights: convolutions, then class points or a linear head.

Written once, for k clients; one client by itself is k = 1. Tensor names are the contract with
`clients.flatland.client`: `convolutions.0.time` is m, `convolutions.0.space` M, `head.*` the decoder.
"""

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from clients.flatland.layers import Map, Weights
from clients.models.dropout import draw_masks
from fedsim.contracts import Batch, DataSpec, StackedBatch, Tensors

NODE_LAYERS, GRAPH_LAYERS = 2, 3  # those of the usual baselines, a GCN and a GIN

Watch = dict[str, Tensor]
"""Where a forward pass leaves what diagnostics ask for, [k] each; None: nothing is computed for them."""


class Points(nn.Module):
    """Class points: [classes, d] space coordinates, and a bias [classes]."""

    def __init__(self, classes: int, width: int) -> None:
        super().__init__()
        self.points = nn.Parameter(torch.randn(classes, width) / width**0.5)
        self.bias = nn.Parameter(torch.zeros(classes))


class DecoupledStack(nn.Module):
    """[v, f] -> [v, classes] on nodes, [g, classes] on graphs.

    Args:
        spec: nodes or graphs.
        hidden: d, the width of every state.
        layers: convolutions; None: 2 on nodes, 3 on graphs.
        dropout: share of coordinates dropped in training, after every convolution but the last.
        kind: of the maps.
        linear_head: a linear decoder in place of class points.
    """

    def __init__(
        self,
        spec: DataSpec,
        *,
        hidden: int,
        layers: int | None,
        dropout: float,
        kind: Map = "decoupled",
        linear_head: bool = False,
    ) -> None:
        super().__init__()
        self.on_graphs = spec.task == "graphs"
        count = layers or (GRAPH_LAYERS if self.on_graphs else NODE_LAYERS)
        widths = (*spec.shape, *[hidden] * count)
        self.convolutions = nn.ModuleList(Weights(a, b, kind) for a, b in pairwise(widths))
        self.head = nn.Linear(hidden, spec.classes) if linear_head else Points(spec.classes, hidden)
        self.dropout = dropout
        self.masks = {f"dropout.{index}": hidden for index in range(count - 1)}

    def forward(self, batch: Batch, noise: Tensors | None = None) -> Tensor:
        """Logits, with the masks of `noise` after each hidden convolution."""
        logits: Tensor = self.watched(batch, noise, None)
        return logits

    def watched(self, batch: Batch, noise: Tensors | None, watch: Watch | None) -> Tensor:
        """Logits of one client, with what `watch` is given on the way."""
        x, y = batch.x.unsqueeze(0), batch.y.unsqueeze(0)
        alone = StackedBatch(batch._replace(x=x, y=y), slots=len(batch.x))
        named = (*self.named_parameters(), *self.named_buffers())
        tensors = {name: tensor.unsqueeze(0) for name, tensor in named}
        drawn = {name: mask.unsqueeze(0) for name, mask in (noise or {}).items()}
        return self._run(tensors, alone, drawn or None, watch).squeeze(0)

    def forward_stacked(self, tensors: Tensors, batch: StackedBatch, noise: Tensors | None) -> Tensor:
        """[k, v, classes] or [k, g, classes] for k clients."""
        return self._run(tensors, batch, noise, None)

    def _run(
        self, tensors: Tensors, batch: StackedBatch, noise: Tensors | None, watch: Watch | None
    ) -> Tensor:
        states, last = self.enter(tensors, batch), len(self.convolutions) - 1
        for index in range(last + 1):
            states = self.convolve(tensors, index, states, batch, watch)
            if index < last:
                mask = noise[f"dropout.{index}"] if noise else None
                states = self.activate(tensors, index, states, mask)
        if self.on_graphs:
            states = self.read_out(tensors, states, batch)
        return self.decode(tensors, states)

    def enter(self, tensors: Tensors, batch: StackedBatch) -> Any:
        """The inputs as the first convolution takes them."""
        raise NotImplementedError(f"{type(self).__name__} has no enter")

    def convolve(
        self, tensors: Tensors, index: int, states: Any, batch: StackedBatch, watch: Watch | None
    ) -> Tensor:
        """One map and one step along the edges."""
        raise NotImplementedError(f"{type(self).__name__} has no convolve")

    def activate(self, tensors: Tensors, index: int, states: Tensor, mask: Tensor | None) -> Tensor:
        """The activation and the dropout mask [k, v, d] after a hidden convolution."""
        raise NotImplementedError(f"{type(self).__name__} has no activate")

    def read_out(self, tensors: Tensors, states: Tensor, batch: StackedBatch) -> Tensor:
        """One state for each graph."""
        raise NotImplementedError(f"{type(self).__name__} has no read_out")

    def decode(self, tensors: Tensors, states: Tensor) -> Tensor:
        """Logits."""
        raise NotImplementedError(f"{type(self).__name__} has no decode")

    def draw(self, batch: Batch, rng: torch.Generator) -> dict[str, Tensor]:
        """One mask [v, hidden] per convolution but the last."""
        return draw_masks(self.masks, self.dropout, batch.x, rng)
