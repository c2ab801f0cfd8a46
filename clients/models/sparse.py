"""Products with a constant sparse matrix, whose transpose is laid out once for the gradient."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedsim.data.compressed import compressed


@dataclass(frozen=True)
class Sparse:
    """A constant matrix [m, n] in compressed rows.

    Attributes:
        matrix: [m, n] CSR.
        transposed: [n, m] CSR.
    """

    matrix: Tensor
    transposed: Tensor

    @classmethod
    def of(cls, rows: Tensor, columns: Tensor, values: Tensor, shape: tuple[int, int]) -> "Sparse":
        """From the places and values of entries; those at the same place add up."""
        forward = _compressed(rows, columns, values, shape)
        return cls(forward, _compressed(columns, rows, values, shape[::-1]))

    def __matmul__(self, dense: Tensor) -> Tensor:
        """[m, n] @ [n, h] -> [m, h], with a gradient for the dense side."""
        result: Tensor = _Product.apply(self.matrix, self.transposed, dense)  # type: ignore[no-untyped-call]
        return result


def products(blocks: Sequence[Sparse], weights: Tensor) -> Tensor:
    """Each client's sparse inputs [v, in] times its own weights, turned, with a gradient for the weights.

    Client by client, so that the turned weights stay in the cache: a processor's time goes into turning.

    Args:
        blocks: the inputs of k clients.
        weights: [k, out, in].

    Returns:
        [k, v, out].
    """
    result: Tensor = _Products.apply(blocks, weights)  # type: ignore[no-untyped-call]
    return result


class _Products(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, blocks: Sequence[Sparse], weights: Tensor) -> Tensor:
        ctx.blocks = blocks
        clients, width, into = weights.shape
        turned = weights.new_empty(into, width)
        result = weights.new_empty(clients, blocks[0].matrix.shape[0], width)
        for block, weight, product in zip(blocks, weights.detach(), result, strict=True):
            _turn(weight, turned)
            torch.mm(block.matrix, turned, out=product)
        return result

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, Tensor]:
        slopes = gradients[0].contiguous()
        clients, _, width = slopes.shape
        turned = slopes.new_empty(ctx.blocks[0].matrix.shape[1], width)
        result = slopes.new_empty(clients, width, len(turned))
        for block, slope, gradient in zip(ctx.blocks, slopes, result, strict=True):
            torch.mm(block.transposed, slope, out=turned)
            _turn(turned, gradient)
        return None, result


def _turn(source: Tensor, target: Tensor) -> None:
    """Write the transpose of `source` to `target`; NumPy takes a third of torch's time for it."""
    if source.device.type == "cpu":
        np.copyto(target.numpy(), source.numpy().T)
    else:
        target.copy_(source.t())


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, matrix: Tensor, transposed: Tensor, dense: Tensor) -> Tensor:
        ctx.transposed = transposed
        return torch.mm(matrix, dense)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, None, Tensor]:
        return None, None, torch.mm(ctx.transposed, gradients[0].contiguous())


def _compressed(rows: Tensor, columns: Tensor, values: Tensor, shape: tuple[int, int]) -> Tensor:
    keys, places = torch.unique(rows * shape[1] + columns, return_inverse=True)
    summed = values.new_zeros(len(keys)).index_add_(0, places, values)
    return compressed(keys // shape[1], keys % shape[1], summed, shape)
