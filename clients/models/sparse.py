"""Products with a constant sparse matrix, whose transpose is laid out once for the gradient."""

import warnings
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


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
    """CSR with 32-bit places where they fit, as MKL's products want them."""
    keys, places = torch.unique(rows * shape[1] + columns, return_inverse=True)
    summed = values.new_zeros(len(keys)).index_add_(0, places, values)
    filled = torch.bincount(keys // shape[1], minlength=shape[0])
    ends = torch.cat([filled.new_zeros(1), filled.cumsum(0)])
    kind = torch.int32 if max(*shape, len(keys)) < 2**31 else torch.int64
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta")
        return torch.sparse_csr_tensor(ends.to(kind), (keys % shape[1]).to(kind), summed, size=shape)
