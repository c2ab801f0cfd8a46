"""Linear layers of many clients at once: k clients, v slots for rows or nodes each, in and out units.

Dense products are batched over clients; sparse inputs are one block-diagonal matrix for all of them.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from clients.models.sparse import Sparse, products
from fedsim.contracts import Batch, StackedBatch, Tensors

_APART = 2**14  # entries of a weight from which on clients are taken one by one: their overhead is small then


def inputs(batch: StackedBatch) -> Tensor:
    """X as layers take it: rows flattened to [k, b, in]; graphs [k, v, f] or CSR [k v, k f] as they are."""
    x = batch.batch.x
    return x if x.layout == torch.sparse_csr else x.flatten(2)


def linear(batch: StackedBatch, states: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Each client's own linear layer.

    Args:
        batch: of the step; keeps the transpose of sparse inputs.
        states: [k, v, in], or the batch's sparse inputs.
        weight: [k, out, in].
        bias: [k, out].

    Returns:
        [k, v, out].
    """
    if states.layout == torch.sparse_csr:
        product = _of_sparse(batch, weight)
        return product if bias is None else product + bias.unsqueeze(1)
    result: Tensor = _Linear.apply(states, weight, bias)  # type: ignore[no-untyped-call]
    return result


def _of_sparse(batch: StackedBatch, weight: Tensor) -> Tensor:
    """[k, v, out], without a bias."""
    _, width, into = weight.shape
    if width * into >= _APART:
        return products(batch.form("inputs by client", _by_client), weight)
    flat = kept(batch, "inputs", _inputs) @ weight.transpose(1, 2).reshape(-1, width)
    return flat.view(len(weight), -1, width)


class _Linear(torch.autograd.Function):
    """[k, v, in] -> [k, v, out]; its gradients lie in memory as the weights do, for a fast step."""

    @staticmethod
    def forward(ctx: Any, states: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(states, weight)
        if bias is None:
            return torch.bmm(states, weight.transpose(1, 2))
        return torch.baddbmm(bias.unsqueeze(1), states, weight.transpose(1, 2))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        (slope,) = gradients
        states, weight = ctx.saved_tensors
        of_states, of_weight, of_bias = ctx.needs_input_grad
        return (
            torch.bmm(slope, weight) if of_states else None,
            torch.bmm(slope.transpose(1, 2), states) if of_weight else None,
            slope.sum(dim=1) if of_bias else None,
        )


def layer(tensors: Tensors, name: str, *, bias: bool = True) -> tuple[Tensor, Tensor | None]:
    """The weight and the bias of a linear layer."""
    return tensors[f"{name}.weight"], tensors[f"{name}.bias"] if bias else None


def kept(batch: StackedBatch, name: str, build: Callable[[Batch], Sparse]) -> Sparse:
    """A matrix made from the batch's inputs or edges, once for as long as they stay the same."""
    found: Sparse = batch.form(name, build)
    return found


def _by_client(batch: Batch) -> list[Sparse]:
    """The blocks of sparse inputs [k v, k f], each [v, f]."""
    clients = len(batch.y)
    slots, width = (length // clients for length in batch.x.shape)
    coordinates = batch.x.to_sparse_coo()  # type: ignore[no-untyped-call]
    rows, columns = coordinates.indices()
    filled = torch.bincount(rows // slots, minlength=clients).tolist()
    parts = zip(*(one.split(filled) for one in (rows, columns, coordinates.values())), strict=True)
    return [Sparse.of(r % slots, c % width, values, (slots, width)) for r, c, values in parts]


def _inputs(batch: Batch) -> Sparse:
    coordinates = batch.x.to_sparse_coo()  # type: ignore[no-untyped-call]
    rows, columns = coordinates.indices()
    return Sparse.of(rows, columns, coordinates.values(), (batch.x.shape[0], batch.x.shape[1]))
