"""Data of known sizes, drawn from the source's own seed: rows, images, and one graph of separate blocks.

They are plugins like any other: `data = { kind = "synthetic:Vectors", count = 32000 }`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from fedsim.data.examples import Rows
from fedsim.data.pool import Integers, Items, NodePool, Pool, RowPool


@dataclass(frozen=True, kw_only=True)
class Vectors:
    """Gaussian rows, labelled by the largest of `classes` random projections.

    Attributes:
        count: rows.
        features: of a row.
        classes: of labels.
    """

    count: int
    features: int = 64
    classes: int = 10

    def load(self) -> tuple[Pool, ...]:
        rng = torch.Generator().manual_seed(0)
        teacher = torch.randn(self.features, self.classes, generator=rng)
        x = torch.randn(self.count + self.classes, self.features, generator=rng)
        rows = Rows(x, (x @ teacher).argmax(dim=1))
        return (_pool("vectors", rows, self.classes),)


@dataclass(frozen=True, kw_only=True)
class Images:
    """Noise with a bright square whose place is the label; uint8, three colours.

    Attributes:
        count: images.
        side: pixels of height and width.
        classes: of labels; at most (side / 8) squared.
    """

    count: int
    side: int = 32
    classes: int = 10

    def load(self) -> tuple[Pool, ...]:
        rng = torch.Generator().manual_seed(0)
        count = self.count + self.classes
        x = torch.randint(0, 128, (count, 3, self.side, self.side), generator=rng, dtype=torch.uint8)
        y = torch.randint(self.classes, (count,), generator=rng)
        across = self.side // 8
        for label in range(self.classes):
            top, left = 8 * (label // across), 8 * (label % across)
            x[y == label, :, top : top + 8, left : left + 8] += 100
        half = torch.full((3, 1, 1), 64.0)
        return (_pool("images", Rows(x, y, half, half.clone()), self.classes),)


@dataclass(frozen=True, kw_only=True)
class GraphBlocks:
    """One graph of unconnected blocks with as many nodes each; a block becomes a client.

    Attributes:
        blocks: how many.
        nodes: of a block.
        features: of a node.
        density: share of features that are 1, the rest being 0; 1: Gaussian features.
        degree: average number of neighbours.
        classes: of labels.
    """

    blocks: int
    nodes: int = 250
    features: int = 1433
    density: float = 0.0127
    degree: int = 4
    classes: int = 7

    def load(self) -> tuple[Pool, ...]:
        rng = torch.Generator().manual_seed(0)
        count = self.blocks * self.nodes
        if self.density == 1:
            x = torch.randn(count, self.features, generator=rng)
        else:
            x = (torch.rand(count, self.features, generator=rng) < self.density).float()
        ends = torch.randint(self.nodes, (2, self.blocks, self.nodes * self.degree // 2), generator=rng)
        ends = (ends + torch.arange(self.blocks)[None, :, None] * self.nodes).reshape(2, -1)
        ends = torch.unique(ends[:, ends[0] != ends[1]].sort(dim=0).values, dim=1)
        y = torch.randint(self.classes, (count,), generator=rng)
        edges = torch.cat([ends, ends.flip(0)], dim=1)
        return (NodePool(name="graph blocks", x=x, edge_index=edges, y=y, classes=self.classes),)


@dataclass(frozen=True, kw_only=True)
class Blocks:
    """Equal stretches of items, in their order."""

    def divide(self, items: Items, clients: int, rng: np.random.Generator) -> Sequence[Integers]:
        return np.array_split(np.arange(len(items)), clients)


def _pool(name: str, rows: Rows, classes: int) -> RowPool:
    """The last `classes` rows are a test set that nobody asks for, so that every client is full."""
    count = len(rows) - classes
    return RowPool(name=name, rows=rows.part(0, count), test=rows.part(count, len(rows)), classes=classes)
