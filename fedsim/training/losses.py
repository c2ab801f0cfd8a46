"""The supervised loss of any model that follows `contracts.Model`, for authors of client methods."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedsim.contracts import Batch, Context, Draw, Losses, Tensors
from fedsim.training.functional import FunctionalModel

_IGNORED = -100  # the label that torch's cross-entropy leaves out by default


def supervised_losses(model: nn.Module, prefix: str = "") -> Losses:
    """Mean cross-entropy over the examples that count, as one loss [], and the model's new buffers.

    Args:
        model: a template; it is called functionally and left as it was.
        prefix: of the tensors to use, such as `"personal/"` for a personal copy of the model.
    """
    call = FunctionalModel(model, prefix)

    def losses(tensors: Tensors, batch: Batch, context: Context) -> tuple[Tensor, Tensors]:
        logits, buffers = call(tensors, batch, context.noise)
        return cross_entropy(logits, batch), buffers

    return losses


def cross_entropy(logits: Tensor, batch: Batch, reduction: str = "mean") -> Tensor:
    """[], the cross-entropy of [b, classes] logits over the labels that `batch.mask` lets count."""
    return functional.cross_entropy(logits, counted_labels(batch), reduction=reduction)


def counted_labels(batch: Batch) -> Tensor:
    """[b] int64 labels, -100 where the mask says that an example does not count."""
    return batch.y if batch.mask is None else batch.y.masked_fill(~batch.mask, _IGNORED)


def model_draw(model: nn.Module) -> Draw | None:
    """A `Phase.draw` that leaves the batch as it is and asks the model for its noise.

    None where the model has no method `draw`.
    """
    ask = getattr(model, "draw", None)
    if ask is None:
        return None

    def draw(batch: Batch, rng: torch.Generator) -> tuple[Batch, Tensors]:
        return batch, ask(batch, rng)

    return draw
