"""A classifier without inputs: one logit per class.

With `client.kind = "local"` and one full-batch step it always predicts its client's most frequent training
label (of several, the first): the constant-class predictor, which a personalised method has to beat before
its accuracy means anything.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from clients.models.checks import require_task
from fedsim.contracts import Batch, DataSpec, StackedBatch, Tensors


@dataclass(frozen=True, kw_only=True)
class LabelPrior:
    """Serves rows, nodes and graphs alike."""

    def build(self, spec: DataSpec) -> nn.Module:
        """The module, all logits 0."""
        require_task("label_prior", spec, "rows", "nodes", "graphs")
        return LabelPriorModel(spec.classes)


class LabelPriorModel(nn.Module):
    """[b, ...] -> [b, classes], every row the same."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.logits = nn.Parameter(torch.zeros(classes))

    def forward(self, batch: Batch, noise: Tensors | None = None) -> Tensor:
        """The logits, once per label."""
        return self.logits.expand(len(batch.y), -1)

    def forward_stacked(self, tensors: Tensors, batch: StackedBatch, noise: Tensors | None) -> Tensor:
        """[k, b, classes] for k clients."""
        return tensors["logits"].unsqueeze(1).expand(-1, batch.batch.y.shape[1], -1)

    def draw(self, batch: Batch, rng: torch.Generator) -> dict[str, Tensor]:
        """Nothing is drawn."""
        return {}
