"""Multinomial logistic regression: one linear layer on the flattened input."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from clients.models.checks import require_task
from clients.models.stacked_layers import inputs, layer, linear
from fedsim.contracts import Batch, DataSpec, StackedBatch, Tensors


@dataclass(frozen=True, kw_only=True)
class Logistic:
    """Linear logits; on nodes it looks at the features alone, not at the edges."""

    def build(self, spec: DataSpec) -> nn.Module:
        """The module for rows or nodes.

        Raises:
            ConfigError: the data are graphs.
        """
        require_task("logistic", spec, "rows", "nodes")
        return LogisticModel(torch.Size(spec.shape).numel(), spec.classes)


class LogisticModel(nn.Module):
    """[b, ...] -> [b, classes]."""

    def __init__(self, features: int, classes: int) -> None:
        super().__init__()
        self.head = nn.Linear(features, classes)

    def forward(self, batch: Batch, noise: Tensors | None = None) -> Tensor:
        """Logits; there is no noise to apply."""
        logits: Tensor = self.head(batch.x.flatten(1))
        return logits

    def forward_stacked(self, tensors: Tensors, batch: StackedBatch, noise: Tensors | None) -> Tensor:
        """[k, b, classes] for k clients."""
        return linear(batch, inputs(batch), *layer(tensors, "head"))

    def draw(self, batch: Batch, rng: torch.Generator) -> dict[str, Tensor]:
        """Nothing is drawn."""
        return {}
