"""What a loss sees of one client while it is mapped over many.

`torch.func.vmap` shows a loss one client's tensors and hides the others. A model that offers
`forward_stacked` is not mapped operation by operation: its call becomes one operation whose rule for
`vmap` is that function, so that any loss around the model stays as it was written for one client.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from fedsim.contracts import Batch, StackedBatch, Tensors
from fedsim.errors import RoundError


class Unstackable(RoundError):
    """A program that cannot run stacked, in any run; the message says why."""


class ClientView(Batch):
    """One client's part of a stacked batch; a changed copy (`_replace`) is a batch like any other."""

    stacked: StackedBatch | None = None

    @classmethod
    def of(cls, fields: Sequence[Any], stacked: StackedBatch) -> "ClientView":
        """A view with x, y and mask as `vmap` shows them."""
        view = cls(*fields)
        view.stacked = stacked
        return view


class GraphView(ClientView):
    """A client's nodes or graphs: labels and mask, but the inputs only through a model."""

    @property
    def x(self) -> Tensor:
        """Not to be had: clients' graphs differ in size.

        Raises:
            Unstackable: always.
        """
        raise Unstackable("its losses read the features of nodes beside the model")


def call_stacked(
    model: nn.Module, names: Sequence[str], values: Sequence[Tensor], stacked: StackedBatch, noise: Tensors
) -> Tensor:
    """The model's `forward_stacked` from inside `vmap`; one client's logits, as all mapped values are."""
    forward: Callable[..., Tensor] = model.forward_stacked  # type: ignore[assignment]
    count = len(names)

    def all_clients(tensors: Sequence[Tensor]) -> Tensor:
        drawn = dict(zip(noise, tensors[count:], strict=True)) or None
        return forward(dict(zip(names, tensors[:count], strict=True)), stacked, drawn)

    return on_all_clients(all_clients, *values, *noise.values())


def on_all_clients(function: Callable[[Sequence[Tensor]], Tensor], *mapped: Tensor) -> Tensor:
    """`function` of the tensors of all clients at once ([k, ...]), from inside a map over clients."""
    result: Tensor = _AllClients.apply(function, *mapped)  # type: ignore[no-untyped-call]
    return result


class _AllClients(torch.autograd.Function):
    """An operation that exists only under `vmap`; its gradient is that of what the rule computes."""

    @staticmethod
    def forward(all_clients: Callable[..., Tensor], *tensors: Tensor) -> Tensor:
        raise Unstackable("its losses call the model outside of the map over clients")

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """Nothing is kept."""

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        raise Unstackable("its losses differentiate the model inside of the map over clients")

    @staticmethod
    def vmap(info: Any, in_dims: Any, all_clients: Callable[..., Tensor], *tensors: Tensor) -> Any:
        stacked = [
            tensor.expand(info.batch_size, *tensor.shape) if dim is None else tensor.movedim(dim, 0)
            for tensor, dim in zip(tensors, in_dims[1:], strict=True)
        ]
        return all_clients(stacked), 0
