"""Loss and accuracy of a model on splits of data."""

from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from fedsim.contracts import Batch, Examples, Tensors
from fedsim.errors import RoundError, attributed
from fedsim.metrics import Sum
from fedsim.training.functional import FunctionalModel, tensors_on
from fedsim.training.losses import counted_labels, cross_entropy

EVALUATION_BATCH = 1024  # rows or graphs at once


def evaluate(
    model: nn.Module,
    tensors: Tensors,
    splits: Mapping[str, Examples],
    *,
    batch_size: int = EVALUATION_BATCH,
) -> dict[str, Sum]:
    """`{name}_accuracy` and `{name}_loss` (cross-entropy) of each split, in evaluation mode, without noise.

    Args:
        model: a template, left as it was.
        tensors: the model's tensors; one that is missing has the template's value.
        splits: examples by name, such as `test`, on the device of the tensors. Nodes are shown all at once,
            and the model answers once for all splits of the same graph.
        batch_size: rows or graphs at once; changes results by rounding only.
    """
    call = _call(model, tensors)
    found: dict[str, Sum] = {}
    answers: dict[Hashable, Tensor] = {}
    with torch.no_grad(), evaluation_mode(model):
        for name, examples in splits.items():
            graph: Hashable = getattr(examples, "graph", None)
            count, correct, loss = 0, 0, 0.0
            for batch in _batches(examples, batch_size):
                logits = answers[graph] if graph in answers else call(tensors, batch)[0]
                if graph is not None:
                    answers[graph] = logits
                labels = counted_labels(batch)
                counted = labels >= 0
                count += int(counted.sum())
                correct += int(((logits.argmax(dim=-1) == labels) & counted).sum())
                loss += float(cross_entropy(logits, batch, "sum"))
            found[f"{name}_accuracy"] = Sum(float(correct), float(count))
            found[f"{name}_loss"] = Sum(loss, float(count))
    return found


def attack_success(
    model: nn.Module,
    tensors: Tensors,
    examples: Examples,
    poison: Callable[[Batch], Batch],
    *,
    batch_size: int = EVALUATION_BATCH,
) -> Sum:
    """How many poisoned examples get the label that the attack wants, of those whose label it changes.

    Args:
        model: a template, left as it was.
        tensors: the model's tensors.
        examples: on the device of the tensors.
        batch_size: rows or graphs at once.
        poison: batch -> batch with triggers and wanted labels, in the same order.

    Raises:
        RoundError: `poison` raised, or returned another number of examples, or values that are not finite.
    """
    call, count, fooled = _call(model, tensors), 0, 0
    with torch.no_grad(), evaluation_mode(model):
        for batch in _batches(examples, batch_size):
            with attributed("the attack's poison", RoundError):
                poisoned = _like(batch, poison(batch))
            true, wanted = counted_labels(batch), counted_labels(poisoned)
            counted = (true >= 0) & (wanted >= 0) & (true != wanted)
            answers = call(tensors, poisoned)[0].argmax(dim=-1)
            count += int(counted.sum())
            fooled += int(((answers == wanted) & counted).sum())
    return Sum(float(fooled), float(count))


def _like(batch: Batch, poisoned: Batch) -> Batch:
    """The poisoned batch, if it stands for the same examples."""
    grown = batch.edge_index is not None  # a trigger may be nodes of its own
    if poisoned.y.shape != batch.y.shape or (poisoned.x.shape != batch.x.shape and not grown):
        raise RoundError(
            f"The attack's poison returned inputs of shape {tuple(poisoned.x.shape)} and labels of shape "
            f"{tuple(poisoned.y.shape)}, wanted {tuple(batch.x.shape)} and {tuple(batch.y.shape)}."
        )
    if not bool(torch.isfinite(poisoned.x).all()):
        raise RoundError("The attack's poison returned inputs that are not finite.")
    return poisoned


def _call(model: nn.Module, tensors: Tensors) -> FunctionalModel:
    """The model as a function, its template on the device of the tensors."""
    tensors_on(next((tensor.device for tensor in tensors.values()), torch.device("cpu")), model)
    return FunctionalModel(model)


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """All submodules in evaluation mode inside the scope, and each as it was after it."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


def _batches(examples: Examples, batch_size: int) -> Iterator[Batch]:
    count = len(examples)
    if count == 0:
        return
    index = torch.arange(count, device=examples.labels().device)
    if count <= batch_size or examples.batch(index[:1]).mask is not None:  # masked: a graph, shown whole
        yield examples.batch()
        return
    for part in torch.split(index, batch_size):
        yield examples.batch(part)
