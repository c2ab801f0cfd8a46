"""The gradient of one step: of k losses combined, or of every example apart."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from fedsim.contracts import STEP_NOISE, Batch, Context, Phase, Tensors, Vector, total
from fedsim.errors import RoundError

_Aside = tuple[Tensor, Tensors]


class StepGradient(NamedTuple):
    """What one batch gives.

    Attributes:
        loss: [] or [1], the sum of the losses; the mean over examples where each has its own.
        gradient: [d], combined; or, where nothing had to be combined, one gradient per trained tensor.
            Only to be read: autograd may hand out one tensor twice.
        buffers: new values of buffers by name.
        unused: names of trained tensors without influence on any of the losses.
    """

    loss: Tensor
    gradient: Vector | tuple[Tensor, ...]
    buffers: Tensors
    unused: frozenset[str]

    @property
    def vector(self) -> Vector:
        """[d], the gradient as one vector."""
        return self.gradient if isinstance(self.gradient, Tensor) else _flat(self.gradient)


def step_gradient(
    phase: Phase, tensors: Tensors, leaves: Mapping[str, Tensor], batch: Batch, context: Context
) -> StepGradient:
    """The gradient of one batch.

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
    if losses.dim() > 1:
        raise RoundError(f"A phase's losses must have shape [k], found {tuple(losses.shape)}.")
    if phase.combine is total:  # the gradient of the sum, in one pass
        loss = losses if losses.numel() == 1 else losses.sum()
        parts, unused = _gradient(loss, leaves)
        return StepGradient(loss.detach(), parts, buffers, unused)
    losses = losses.reshape(-1)
    last = len(losses) - 1
    rows = [_gradient(loss, leaves, retain=i < last) for i, loss in enumerate(losses)]
    gradient = phase.combine(torch.stack([_flat(parts) for parts, _ in rows]), context)
    unused = frozenset.intersection(*(names for _, names in rows))
    return StepGradient(losses.detach().sum(), gradient, buffers, unused)


def _gradient(
    loss: Tensor, leaves: Mapping[str, Tensor], retain: bool = False
) -> tuple[tuple[Tensor, ...], frozenset[str]]:
    """(a gradient per tensor, names of tensors without influence on the loss: theirs is zero)."""
    values = tuple(leaves.values())
    parts = torch.autograd.grad(loss, values, retain_graph=retain, allow_unused=True)
    if all(part is not None for part in parts):
        return parts, frozenset()
    unused = frozenset(name for name, part in zip(leaves, parts, strict=True) if part is None)
    pairs = zip(values, parts, strict=True)
    return tuple(torch.zeros_like(v) if part is None else part for v, part in pairs), unused


def _flat(parts: Sequence[Tensor]) -> Vector:
    return torch.cat([part.reshape(-1) for part in parts])


def _per_example(
    phase: Phase, tensors: Tensors, leaves: Mapping[str, Tensor], batch: Batch, context: Context
) -> StepGradient:
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
    return StepGradient(losses.mean(), phase.combine(matrix, context), {}, frozenset())


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
