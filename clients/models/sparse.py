"""Products with a constant sparse matrix, whose transpose is laid out once for the gradient."""

from dataclasses import dataclass
from typing import Any

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
