"""Stacked examples of any kind: each client's batch is made apart."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedsim.contracts import Batch, Examples, StackedBatch, StackedExamples
from fedsim.training.client_view import Unstackable


@dataclass(frozen=True)
class StackedLists:
    """For examples that cannot be gathered together; rows only."""

    parts: Sequence[Examples]
    ragged: bool = False

    def batch(self, rows: Sequence[int], index: Tensor | None) -> StackedBatch:
        """The batches of clients `rows`, stacked."""
        places = [None] * len(rows) if index is None else list(index)
        batches = [self.parts[row].batch(place) for row, place in zip(rows, places, strict=True)]
        if any(one.mask is not None or one.edge_index is not None for one in batches):
            raise Unstackable("its examples are graphs that offer no `together`")
        return StackedBatch(Batch(torch.stack([b.x for b in batches]), torch.stack([b.y for b in batches])))

    def own(self, row: int, index: Tensor | None) -> Batch:
        """The client's own batch."""
        return self.parts[row].batch(index)


def together(parts: Sequence[Examples]) -> StackedExamples:
    """The stacked form that the examples offer, or a list."""
    offered = getattr(parts[0], "together", None)
    found: StackedExamples | None = None
    if offered is not None and all(type(part) is type(parts[0]) for part in parts):
        found = offered(parts)
    return StackedLists(parts) if found is None else found
