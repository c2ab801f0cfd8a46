"""The gradients of one step of many clients: `gradients.step_gradient` mapped over them.

Clients do not interact, so one pass of autograd through the sum of all clients' losses gives each client
its own gradient.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from fedsim.contracts import STEP_NOISE, Batch, Context, Phase, StackedBatch, Tensors, total
from fedsim.errors import RoundError
from fedsim.training.client_view import ClientView, GraphView, Unstackable
from fedsim.training.losses import StackedLosses
from fedsim.training.over_clients import cannot_be_mapped, over_clients


@dataclass(frozen=True)
class StackedStep:
    """What k clients bring to a step.

    Attributes:
        common: tensors that are the same for all of them.
        own: frozen tensors of each, [k, ...].
        leaves: the trained tensors in their order, [k, ...].
        batch: of the step.
        context: `private` and `noise` hold [k, ...] each; the rest is common.
    """

    common: Tensors
    own: Tensors
    leaves: Tensors
    batch: StackedBatch
    context: Context

    def common_to_all(self) -> dict[str, Tensor]:
        """The common tensors as [k, ...], without copies."""
        count = len(self.batch.batch.y)
        return {name: value.expand(count, *value.shape) for name, value in self.common.items()}

    def mapped(self, function: Callable[..., Any], *stacked: Any) -> Any:
        """`function(one client's part of `stacked`, that client's context)`, for all clients."""
        private, noise = self.context.private, self.context.noise
        context = self.context
        if not private and not noise:
            return over_clients(lambda *own: function(*own, context), *stacked)

        def with_context(private: Tensors, noise: Tensors, *own: Any) -> Any:
            return function(*own, replace(context, private=private, noise=noise or None))

        return over_clients(with_context, private, noise or {}, *stacked)


@dataclass(frozen=True)
class StackedGradient:
    """What one step gives.

    Attributes:
        losses: [k], the sum of each client's losses; the mean over examples where each has its own.
        parts: one gradient [k, ...] per trained tensor, where nothing had to be combined; else None.
        combined: [k, d], else None.
        buffers: new values of buffers by name, [k, ...].
        unused: names of trained tensors without influence on any of the losses.
    """

    losses: Tensor
    parts: tuple[Tensor, ...] | None
    combined: Tensor | None
    buffers: Tensors
    unused: frozenset[str]

    @property
    def matrix(self) -> Tensor:
        """[k, d]."""
        if self.combined is not None:
            return self.combined
        return _flat(self.parts or ())


def stacked_gradient(phase: Phase, step: StackedStep) -> StackedGradient:
    """The gradient of each client's batch.

    Raises:
        RoundError: as `step_gradient` does.
        Unstackable: the losses cannot be mapped over clients.
    """
    try:
        return _per_example(phase, step) if phase.per_example else _per_batch(phase, step)
    except RuntimeError as error:
        if not cannot_be_mapped(error):
            raise
        line = next(iter(str(error).splitlines()), "")
        raise Unstackable(f"its losses cannot be mapped over clients ({line})") from error


def _per_batch(phase: Phase, step: StackedStep) -> StackedGradient:
    losses, buffers = _losses(phase, step)
    if losses.dim() > 2:
        raise RoundError(f"A phase's losses must have shape [k], found {tuple(losses.shape[1:])}.")
    if phase.combine is total:
        parts, unused = _gradient(losses, step.leaves)
        summed = losses.detach() if losses.dim() == 1 else losses.detach().sum(dim=1)
        return StackedGradient(summed, parts, None, buffers, unused)
    columns = losses.reshape(len(losses), -1).unbind(1)
    rows, last = [], len(columns) - 1
    for number, column in enumerate(columns):
        rows.append(_gradient(column, step.leaves, retain=number < last))
    matrix = torch.stack([_flat(parts) for parts, _ in rows], dim=1)  # [clients, losses, d]
    combined = step.mapped(phase.combine, matrix)
    unused = frozenset.intersection(*(names for _, names in rows))
    return StackedGradient(torch.stack(columns).detach().sum(dim=0), None, combined, buffers, unused)


def _losses(phase: Phase, step: StackedStep) -> tuple[Tensor, Tensors]:
    """([c] or [c, k], buffers): the losses of all clients in one pass."""
    if isinstance(phase.losses, StackedLosses):
        everything = {**step.common_to_all(), **step.own, **step.leaves}
        return phase.losses.of_all(everything, step.batch, step.context), {}
    batch, context, common = step.batch.batch, step.context, step.common
    view = ClientView if batch.edge_index is None else GraphView
    fields = (batch.x if view is ClientView else None, batch.y, batch.mask)
    shown = [number for number, one in enumerate(fields) if one is not None]

    def of_one(
        tensors: Tensors, private: Tensors, noise: Tensors, *visible: Tensor
    ) -> tuple[Tensor, Tensors]:
        own: list[Tensor | None] = [None, None, None]
        for number, one in zip(shown, visible, strict=True):
            own[number] = one
        inner = Context(context.anchor, private, context.downlink, context.round, noise or None)
        return phase.losses({**common, **tensors}, view.of(own, step.batch), inner)

    visible = [one for one in fields if one is not None]
    tensors = {**step.own, **step.leaves}
    mapped = torch.func.vmap(of_one)
    result: tuple[Tensor, Tensors] = mapped(tensors, context.private, context.noise or {}, *visible)
    return result


def _gradient(
    losses: Tensor, leaves: Tensors, retain: bool = False
) -> tuple[tuple[Tensor, ...], frozenset[str]]:
    values = tuple(leaves.values())
    parts = torch.autograd.grad(losses.sum(), values, retain_graph=retain, allow_unused=True)
    if all(part is not None for part in parts):
        return parts, frozenset()
    unused = frozenset(name for name, part in zip(leaves, parts, strict=True) if part is None)
    pairs = zip(values, parts, strict=True)
    return tuple(torch.zeros_like(v) if part is None else part for v, part in pairs), unused


def _flat(parts: Sequence[Tensor]) -> Tensor:
    return torch.cat([part.reshape(len(part), -1) for part in parts], dim=1)


def _per_example(phase: Phase, step: StackedStep) -> StackedGradient:
    batch, context, common = step.batch.batch, step.context, step.common
    if batch.mask is not None or batch.edge_index is not None:
        raise RoundError("per_example needs rows: the nodes of a graph have no gradients of their own.")
    noise = context.noise or {}
    whole = {name: tensor for name, tensor in noise.items() if name.startswith(STEP_NOISE)}
    apart = {name: tensor.unsqueeze(2) for name, tensor in noise.items() if name not in whole}

    def of_client(
        trained: Tensors, own: Tensors, private: Tensors, whole: Tensors, apart: Tensors, x: Tensor, y: Tensor
    ) -> tuple[Tensors, tuple[Tensor, Tensors]]:
        def of_one(
            trained: Tensors, x: Tensor, y: Tensor, noise: Tensors
        ) -> tuple[Tensor, tuple[Tensor, Tensors]]:
            inner = Context(context.anchor, private, context.downlink, context.round, {**noise, **whole})
            losses, buffers = phase.losses({**common, **own, **trained}, Batch(x, y), inner)
            loss = losses.sum()
            return loss, (loss, buffers)

        mapped = torch.func.vmap(torch.func.grad(of_one, has_aux=True), in_dims=(None, 0, 0, 0))
        result: tuple[Tensors, tuple[Tensor, Tensors]] = mapped(trained, x, y, apart)
        return result

    trained = {name: leaf.detach() for name, leaf in step.leaves.items()}
    x, y = batch.x.unsqueeze(2), batch.y.unsqueeze(2)  # b batches of one example for each client
    gradients, (losses, buffers) = torch.func.vmap(of_client)(
        trained, step.own, context.private, whole, apart, x, y
    )
    for name, values in buffers.items():
        before = step.own[name].unsqueeze(1) if name in step.own else step.common[name]
        if not torch.equal(values, before.expand_as(values)):
            raise RoundError(
                f"per_example: buffer {name!r} depends on the batch, so single examples have no gradients "
                "of their own."
            )
    matrix = torch.cat([gradients[name].flatten(2) for name in step.leaves], dim=2)  # [clients, b, d]
    combined = step.mapped(phase.combine, matrix)
    return StackedGradient(losses.mean(dim=1), None, combined, {}, frozenset())
