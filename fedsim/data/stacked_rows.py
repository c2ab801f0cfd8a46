"""Rows of many clients, gathered in one call."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

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
    first, places = parts[0], [part.place for part in parts]
    sizes = [place.size for place in places]
    if all(place.memory == places[0].memory for place in places):
        starts = [place.start for place in places]
        end = max(start + size for start, size in zip(starts, sizes, strict=True))
        x, y = _from_the_start(first.x, end), _from_the_start(first.y, end)
    elif all(_fits(part, first) for part in parts):
        ends = torch.tensor([0, *sizes]).cumsum(0)
        starts = ends[:-1].tolist()
        x, y = torch.cat([part.x for part in parts]), torch.cat([part.y for part in parts])
    else:
        return None
    pool = type(first)(x, y, first.mean, first.std, first.dtype)
    return StackedRows(pool, torch.tensor(starts, device=y.device), sizes)


class Place(NamedTuple):
    """Where rows lie: in which memory (and laid out how), from which row on, how many."""

    memory: tuple[Any, ...]
    start: int
    size: int

    @classmethod
    def of(cls, rows: "Rows") -> "Place":
        """Rows with equal `memory` are stretches of one pool."""
        x, y, size = rows.x, rows.y, len(rows.y)
        step, label_step = max(x.stride(0), 1), max(y.stride(0), 1)
        start, skipped = divmod(int(x.storage_offset()), step)
        layout = (
            x.dtype,
            x.shape[1:],
            x.stride(),
            y.stride(),
            skipped,
            y.storage_offset() - start * label_step,
        )
        memory = (x.untyped_storage().data_ptr(), y.untyped_storage().data_ptr())
        scale = [None if one is None else (one.data_ptr(), one.shape) for one in (rows.mean, rows.std)]
        return cls((memory, layout, scale, rows.dtype), start, size)


def _from_the_start(part: Tensor, rows: int) -> Tensor:
    """The first `rows` rows of the memory that a part is a stretch of."""
    return part.as_strided(
        (rows, *part.shape[1:]), part.stride(), part.storage_offset() % max(part.stride(0), 1)
    )


def _fits(part: "Rows", first: "Rows") -> bool:
    alike = (part.x.shape[1:], part.x.dtype, part.dtype) == (first.x.shape[1:], first.x.dtype, first.dtype)
    return alike and _same(part.mean, first.mean) and _same(part.std, first.std)


def _same(one: Tensor | None, other: Tensor | None) -> bool:
    if one is None or other is None:
        return one is other
    return one is other or torch.equal(one, other)
