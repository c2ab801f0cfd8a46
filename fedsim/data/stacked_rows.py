"""Rows of many clients, gathered in one call."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedsim.contracts import Batch, StackedBatch

if TYPE_CHECKING:
    from fedsim.data.examples import Rows


@dataclass(frozen=True)
class StackedRows:
    """Clients' rows as stretches of one pool.

    Attributes:
        pool: all rows.
        starts: [c] int64, each client's first row in the pool.
        sizes: rows of each client.
        ragged: no: a step needs equally many rows of each client.
    """

    pool: "Rows"
    starts: Tensor
    sizes: Sequence[int]
    ragged: bool = False

    def batch(self, rows: Sequence[int], index: Tensor | None) -> StackedBatch:
        """The rows at `index` of clients `rows`; x [k, b, ...], y [k, b]."""
        if index is None:
            index = torch.arange(self.sizes[rows[0]], device=self.starts.device).expand(len(rows), -1)
        starts = self.starts if len(rows) == len(self.starts) else self.starts[list(rows)]
        flat = self.pool.batch((index + starts[:, None]).reshape(-1))
        shape = index.shape
        return StackedBatch(Batch(flat.x.view(*shape, *flat.x.shape[1:]), flat.y.view(shape)))

    def own(self, row: int, index: Tensor | None) -> Batch:
        """The rows of one client."""
        first = int(self.starts[row])
        return self.pool.part(first, first + self.sizes[row]).batch(index)


def stacked_rows(parts: Sequence["Rows"]) -> StackedRows | None:
    """One pool for all parts: the memory they already share, or else a copy; None where they do not fit."""
    first = parts[0]
    for part in parts[1:]:
        if part.x.shape[1:] != first.x.shape[1:] or part.x.dtype != first.x.dtype or part.dtype != first.dtype:
            return None
        if not (_same(part.mean, first.mean) and _same(part.std, first.std)):
            return None
    (x, starts), (y, label_starts) = _pooled([p.x for p in parts]), _pooled([p.y for p in parts])
    if starts != label_starts:
        x, starts = _copied([p.x for p in parts])
        y, _ = _copied([p.y for p in parts])
    pool = type(first)(x, y, first.mean, first.std, first.dtype)
    return StackedRows(pool, torch.tensor(starts, device=y.device), [len(part) for part in parts])


def _same(one: Tensor | None, other: Tensor | None) -> bool:
    if one is None or other is None:
        return one is other
    return one is other or (one.data_ptr() == other.data_ptr() and one.shape == other.shape) or torch.equal(one, other)


def _pooled(parts: Sequence[Tensor]) -> tuple[Tensor, list[int]]:
    """(the memory from the lowest part to the highest, each part's first row in it)."""
    first = parts[0]
    storage, stride = first.untyped_storage().data_ptr(), first.stride()
    offsets = [part.storage_offset() for part in parts]
    lowest, step = min(offsets), stride[0]
    together = step > 0 and all(
        part.untyped_storage().data_ptr() == storage and part.stride() == stride for part in parts
    )
    if not together or any((offset - lowest) % step for offset in offsets):
        return _copied(parts)
    starts = [(offset - lowest) // step for offset in offsets]
    rows = max(start + len(part) for start, part in zip(starts, parts, strict=True))
    return first.as_strided((rows, *first.shape[1:]), stride, lowest), starts


def _copied(parts: Sequence[Tensor]) -> tuple[Tensor, list[int]]:
    ends = torch.tensor([0, *(len(part) for part in parts)]).cumsum(0)
    return torch.cat(list(parts)), ends[:-1].tolist()
