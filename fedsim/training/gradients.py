"""The gradient of one step: of k losses combined, or of every example apart."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from fedsim.contracts import STEP_NOISE, Batch, Context, Phase, Tensors, Vector, total
from fedsim.errors import RoundError

_Aside = tuple[Tensor, Tensors]


def step_gradient(
    phase: Phase, tensors: Tensors, leaves: Mapping[str, Tensor], batch: Batch, context: Context
) -> tuple[Tensor, Vector, Tensors]:
    """(loss [1] or [], gradient [d], new buffers) of one batch.

    Args:
        phase: its losses and how to combine their gradients.
        tensors: all tensors, the trained ones being `leaves`.
        leaves: the trained tensors in their order; d values together.
        batch: the examples of the step.
        context: of the step.

    Raises:
        RoundError: the losses are not [k], or per-example gradients are asked of graphs or of a model
            whose buffers depend on the batch.
    """
    if phase.per_example:
        return _per_example(phase, tensors, leaves, batch, context)
    losses, buffers = phase.losses(tensors, batch, context)
    if losses.dim() != 1:
        raise RoundError(f"A phase's losses must have shape [k], found {tuple(losses.shape)}.")
    if phase.combine is total:  # the gradient of the sum: one pass, and no copy for one loss
        loss = losses if len(losses) == 1 else losses.sum()
        return loss.detach(), _flat_gradient(loss, leaves), buffers
    last = len(losses) - 1
    rows = [_flat_gradient(loss, leaves, retain=i < last) for i, loss in enumerate(losses)]
    return losses.detach().sum(), phase.combine(torch.stack(rows), context), buffers


def _flat_gradient(loss: Tensor, leaves: Mapping[str, Tensor], retain: bool = False) -> Vector:
    """[d]; zero where a tensor has no influence on the loss."""
    values = list(leaves.values())
    parts = torch.autograd.grad(loss, values, retain_graph=retain, allow_unused=True)
    return torch.cat(
        [
            (torch.zeros_like(value) if part is None else part).reshape(-1)
            for part, value in zip(parts, values, strict=True)
        ]
    )


def _per_example(
    phase: Phase, tensors: Tensors, leaves: Mapping[str, Tensor], batch: Batch, context: Context
) -> tuple[Tensor, Vector, Tensors]:
    frozen = {name: tensor for name, tensor in tensors.items() if name not in leaves}
    noise = context.noise or {}
    whole = {name: tensor for name, tensor in noise.items() if name.startswith(STEP_NOISE)}
    apart = {name: tensor.unsqueeze(1) for name, tensor in noise.items() if name not in whole}

    def loss_of_one(trained: Tensors, x: Tensor, y: Tensor, own: Tensors) -> tuple[Tensor, _Aside]:
        inner = Context(context.anchor, context.private, context.downlink, context.round, {**own, **whole})
        losses, buffers = phase.losses({**frozen, **trained}, Batch(x, y), inner)
        loss = losses.sum()
        return loss, (loss, buffers)

    if batch.mask is not None or batch.edge_index is not None:
        raise RoundError("per_example needs rows: the nodes of a graph have no gradients of their own.")
    trained = {name: leaf.detach() for name, leaf in leaves.items()}
    x, y = batch.x.unsqueeze(1), batch.y.unsqueeze(1)  # b batches of one example
    mapped = torch.func.vmap(torch.func.grad(loss_of_one, has_aux=True), in_dims=(None, 0, 0, 0))
    gradients, (losses, buffers) = mapped(trained, x, y, apart)
    for name, values in buffers.items():
        if not torch.equal(values, tensors[name].expand_as(values)):
            raise RoundError(
                f"per_example: buffer {name!r} depends on the batch, so single examples have no gradients "
                "of their own."
            )
    matrix = torch.cat([gradients[name].flatten(1) for name in leaves], dim=1)
    return losses.mean(), phase.combine(matrix, context), {}


def refuse_batch_norm(model: nn.Module) -> None:
    """A model whose outputs for one example depend on the others has no per-example gradients.

    Raises:
        RoundError: a submodule is a BatchNorm in training mode.
    """
    for name, module in model.named_modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.training:
            raise RoundError(
                f"per_example: {name!r} is a BatchNorm, so an example's gradient depends on its batch: "
                "use a model with GroupNorm, or none."
            )
