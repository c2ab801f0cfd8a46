"""Sparse matrices in compressed rows, without torch's notices that their interface may still change."""

import warnings

import torch
from torch import Tensor


def compressed(rows: Tensor, columns: Tensor, values: Tensor, shape: tuple[int, int]) -> Tensor:
    """A CSR matrix, its places in 32 bits where they fit, as MKL's products want them.

    Args:
        rows: [z] int64, ascending.
        columns: [z] int64, ascending within a row.
        values: [z].
        shape: (rows, columns) of the matrix.
    """
    filled = torch.bincount(rows, minlength=shape[0])
    ends = torch.cat([filled.new_zeros(1), filled.cumsum(0)])
    kind = torch.int32 if max(*shape, len(rows)) < 2**31 else torch.int64
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sparse")
        return torch.sparse_csr_tensor(
            ends.to(kind), columns.to(kind), values, size=shape, check_invariants=False
        )
