"""The supervised loss of any model that follows `contracts.Model`, for authors of client methods."""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedsim.contracts import Batch, Context, Draw, Losses, StackedBatch, Tensors
from fedsim.training.client_view import on_all_clients
from fedsim.training.functional import FunctionalModel

_IGNORED = -100  # the label that torch's cross-entropy leaves out by default


@runtime_checkable
class StackedLosses(Protocol):
    """Losses that know those of many clients at once, and so need no map over clients, which costs time.

    A method that adds terms to such losses, as FedProx does, offers the sum of both in the same way.
    """

    def __call__(self, tensors: Tensors, batch: Batch, context: Context) -> tuple[Tensor, Tensors]:
        """Of one client; see `contracts.Losses`."""
        ...

    def of_all(self, tensors: Tensors, batch: StackedBatch, context: Context) -> Tensor:
        """[k], each client's loss; no buffers change.

        Args:
            tensors: [k, ...], of k clients.
            batch: theirs.
            context: `private` and `noise` hold [k, ...] each; the rest is common.
        """
        ...


def supervised_losses(model: nn.Module, prefix: str = "") -> Losses:
    """Mean cross-entropy over the examples that count, as one loss [], and the model's new buffers.

    Args:
        model: a template; it is called functionally and left as it was.
        prefix: of the tensors to use, such as `"personal/"` for a personal copy of the model.
    """
    call = FunctionalModel(model, prefix)
    return SupervisedLosses(call) if call.stacks else _MappedLosses(call)


@dataclass(frozen=True)
class _MappedLosses:
    """Of a model that has no stacked form."""

    call: FunctionalModel

    def __call__(self, tensors: Tensors, batch: Batch, context: Context) -> tuple[Tensor, Tensors]:
        logits, buffers = self.call(tensors, batch, context.noise)
        return cross_entropy(logits, batch), buffers


@dataclass(frozen=True)
class SupervisedLosses(_MappedLosses):
    """Of a model that has one; implements `StackedLosses`."""

    def of_all(self, tensors: Tensors, batch: StackedBatch, context: Context) -> Tensor:
        """[k], each client's mean cross-entropy."""
        return _mean_by_client(self.call.of_all(tensors, batch, context.noise), counted_labels(batch.batch))


def cross_entropy(logits: Tensor, batch: Batch, reduction: str = "mean") -> Tensor:
    """[], the cross-entropy of [b, classes] logits over the labels that `batch.mask` lets count."""
    stacked: StackedBatch | None = getattr(batch, "stacked", None)
    if stacked is not None and reduction == "mean":  # inside a map over clients: one operation for all
        labels = counted_labels(stacked.batch)
        return on_all_clients(lambda mapped: _mean_by_client(mapped[0], labels), logits)
    return functional.cross_entropy(logits, counted_labels(batch), reduction=reduction)


def _mean_by_client(logits: Tensor, labels: Tensor) -> Tensor:
    """[k], from logits [k, b, classes] and labels [k, b].

    Few classes and many rows: torch's own log-softmax takes four times as long over a short last dimension.
    """
    ignored = labels == _IGNORED
    chosen = logits.gather(-1, labels.masked_fill(ignored, 0).unsqueeze(-1)).squeeze(-1)
    losses = (logits.logsumexp(dim=-1) - chosen).masked_fill(ignored, 0.0)
    return losses.sum(dim=1) / (labels.shape[1] - ignored.sum(dim=1))


def counted_labels(batch: Batch) -> Tensor:
    """[b] int64 labels, -100 where the mask says that an example does not count."""
    return batch.y if batch.mask is None else batch.y.masked_fill(~batch.mask, _IGNORED)


def model_draw(model: nn.Module) -> Draw | None:
    """A `Phase.draw` that leaves the batch as it is and asks the model for its noise.

    None where the model has no method `draw`, or its rate of `dropout` says that it draws nothing.
    """
    ask = getattr(model, "draw", None)
    if ask is None or getattr(model, "dropout", None) == 0:
        return None

    def draw(batch: Batch, rng: torch.Generator) -> tuple[Batch, Tensors]:
        return batch, ask(batch, rng)

    return draw
