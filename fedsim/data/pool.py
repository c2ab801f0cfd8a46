"""What a source delivers and what a partition is shown.

A source loads pools, one per data set; a partition divides the items of the pools among clients;
`fedsim.data.federate` turns both into clients. f counts features, v nodes, e directed edges, n items.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from torch import Tensor

from fedsim.contracts import Task
from fedsim.data.examples import Graphs, Rows

Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class RowPool:
    """One set of rows.

    Attributes:
        name: as the user wrote it.
        rows: everything that may be given to clients.
        classes: number of classes.
        test: the set's own test split; None: a `test_fraction` of `rows` is held out.
        test_origin: in words, for the facts.
        test_fraction: of `rows`, in (0, 1).
        standardise: bool, shaped to broadcast over one stored input: where True, the mean and standard
            deviation over the clients' training rows are removed; None: nowhere.
        limit: keep a random subset of this many of `rows`; None: all.
        ids: [n] int64, whose row it is; None where the set does not say.
        facts: provenance, JSON values.
    """

    name: str
    rows: Rows
    classes: int
    test: Rows | None = None
    test_origin: str = "the data set's own test split"
    test_fraction: float = 0.2
    standardise: Tensor | None = None
    limit: int | None = None
    ids: Tensor | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)
    task: Task = "rows"


@dataclass(frozen=True, kw_only=True)
class NodePool:
    """One graph whose nodes are classified.

    Attributes:
        name: as the user wrote it.
        x: [v, f] float32.
        edge_index: [2, e] int64.
        y: [v] int64.
        classes: number of classes.
        facts: provenance, JSON values.
    """

    name: str
    x: Tensor
    edge_index: Tensor
    y: Tensor
    classes: int
    facts: Mapping[str, Any] = field(default_factory=dict)
    task: Task = "nodes"


@dataclass(frozen=True, kw_only=True)
class GraphPool:
    """One set of graphs, each with one label; see `NodePool` for the other attributes."""

    name: str
    graphs: Graphs
    classes: int
    facts: Mapping[str, Any] = field(default_factory=dict)
    task: Task = "graphs"


Pool = RowPool | NodePool | GraphPool


@dataclass(frozen=True, kw_only=True)
class Items:
    """What a partition may look at: the items of all pools, end to end.

    Attributes:
        labels: [n] int64.
        dataset: [n] int64, the pool that each item comes from.
        edge_index: [2, e] int64 over the n items; None unless they are nodes.
        ids: [n] int64, whose item it is; None where no source says.
    """

    labels: Integers
    dataset: Integers
    edge_index: Integers | None = None
    ids: Integers | None = None

    def __len__(self) -> int:
        """The number of items."""
        return len(self.labels)


class Source(Protocol):
    """The `[data]` table; one file in fedsim/data/, or a plugin."""

    def load(self) -> tuple[Pool, ...]:
        """One pool per data set.

        Raises:
            DataError: a set is neither in the mirror nor reachable, or is malformed.
        """
        ...


class Partition(Protocol):
    """The `federation.partition` table.

    A class attribute `overlaps = True` declares that several clients hold the same items on purpose; without
    it, `fedsim check` calls shared items a fault.
    """

    def divide(self, items: Items, clients: int, rng: np.random.Generator) -> Sequence[Integers]:
        """One array of item numbers per client; parts overlap only where the partition says so.

        Raises:
            DataError: the items cannot be divided among so many clients.
        """
        ...
