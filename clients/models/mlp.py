"""A multilayer perceptron: linear layers with ReLU between them, on the flattened input."""

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn

from clients.models.checks import at_least, is_rate, require_task
from clients.models.dropout import draw_masks, drop
from clients.models.stacked_layers import inputs, layer, linear
from fedsim.contracts import Batch, DataSpec, StackedBatch, Tensors
from fedsim.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Mlp:
    """Hidden layers of the given widths; on nodes it looks at the features alone.

    Attributes:
        hidden: units of the hidden layer, or of each of several.
        dropout: share of hidden units dropped in training.
    """

    hidden: int | tuple[int, ...] = 64
    dropout: float = 0.0

    def __post_init__(self) -> None:
        if not self.widths:
            raise ConfigError("hidden must name at least one layer, found [].")
        for width in self.widths:
            at_least("hidden", width, 1)
        is_rate("dropout", self.dropout)

    @property
    def widths(self) -> tuple[int, ...]:
        """`hidden` as a tuple."""
        return (self.hidden,) if isinstance(self.hidden, int) else tuple(self.hidden)

    def build(self, spec: DataSpec) -> nn.Module:
        """The module for rows or nodes.

        Raises:
            ConfigError: the data are graphs.
        """
        require_task("mlp", spec, "rows", "nodes")
        return MlpModel(torch.Size(spec.shape).numel(), self.widths, spec.classes, self.dropout)


class MlpModel(nn.Module):
    """[b, ...] -> [b, classes]."""

    def __init__(self, features: int, widths: tuple[int, ...], classes: int, dropout: float) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise((features, *widths)))
        self.head = nn.Linear(widths[-1], classes)
        self.dropout = dropout
        self.masks = {f"dropout.{index}": width for index, width in enumerate(widths)}

    def forward(self, batch: Batch, noise: Tensors | None = None) -> Tensor:
        """Logits, with the masks of `noise` after each hidden layer."""
        hidden = batch.x.flatten(1)
        for linear_layer, name in zip(self.layers, self.masks, strict=True):
            hidden = drop(linear_layer(hidden).relu(), noise, name)
        logits: Tensor = self.head(hidden)
        return logits

    def forward_stacked(self, tensors: Tensors, batch: StackedBatch, noise: Tensors | None) -> Tensor:
        """[k, b, classes] for k clients."""
        hidden = inputs(batch)
        for index, name in enumerate(self.masks):
            weight, bias = layer(tensors, f"layers.{index}")
            hidden = drop(linear(batch, hidden, weight, bias).relu(), noise, name)
        return linear(batch, hidden, *layer(tensors, "head"))

    def draw(self, batch: Batch, rng: torch.Generator) -> dict[str, Tensor]:
        """One mask [b, width] per hidden layer."""
        return draw_masks(self.masks, self.dropout, batch.x, rng)
