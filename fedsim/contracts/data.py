"""Batches, examples, clients' data.

Shapes use b examples in a batch, k clients in a stack.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol

import torch
from torch import Tensor

Task = Literal["rows", "nodes", "graphs"]


class Batch(NamedTuple):
    """What a model is shown at once; a pytree, so that `torch.func` can map over it.

    Attributes:
        x: [b, ...] inputs; for graphs [v, f], the features of all v nodes.
        y: int64 labels: [b] for rows, [v] for nodes, [g] for g graphs.
        mask: [v] bool, the nodes that count in loss and accuracy; None: all of y counts.
        edge_index: [2, e] int64, or None for rows.
        graph: [v] int64, the graph each node belongs to, or None.
    """

    x: Tensor
    y: Tensor
    mask: Tensor | None = None
    edge_index: Tensor | None = None
    graph: Tensor | None = None


@dataclass(frozen=True)
class DataSpec:
    """What a model must know of the data: the task, the shape of one input, the number of classes."""

    task: Task
    shape: tuple[int, ...]  # rows: (channels, height, width) or (features,); graphs: (features,)
    classes: int


class Examples(Protocol):
    """One split of one client's data: rows, nodes or graphs that count."""

    def __len__(self) -> int:
        """How many rows, nodes or graphs count."""
        ...

    def batch(self, index: Tensor | None = None) -> Batch:
        """The examples at `index` ([b] int64, into 0..len-1) or all of them, ready for a model."""
        ...

    def labels(self) -> Tensor:
        """[len] int64."""
        ...

    def to(self, device: torch.device, dtype: torch.dtype) -> "Examples":
        """The same examples on another device; batches carry floating-point inputs of `dtype`."""
        ...


class StackedExamples(Protocol):
    """The same split of c clients, side by side; `Examples` that can be stacked make one.

    Such examples have a static method `together(parts) -> StackedExamples`, which is asked for the splits
    of c clients; without it, or where it returns None, clients' batches are made apart and stacked.
    """

    @property
    def ragged(self) -> bool:
        """Do clients with different numbers of examples fit into one step over all their examples?"""
        ...

    def batch(self, rows: Sequence[int], index: Tensor | None) -> "StackedBatch":
        """The examples at `index` ([k, b] int64, a row per client) of clients `rows`; None: all of them."""
        ...

    def own(self, row: int, index: Tensor | None) -> Batch:
        """What `batch(index)` ([b]) of one client's examples is, but only to be read, and so not copied."""
        ...


@dataclass(frozen=True, eq=False)
class StackedBatch:
    """The batches of k clients.

    Attributes:
        batch: rows: x [k, b, ...], y [k, b]. Nodes and graphs: every client has v slots for nodes, those
            beyond its own are empty; x [k, v, f], or where less than 10 % of it is not zero, a CSR matrix
            [k v, k f] with a block per client; y [k, v] or [k, g]; mask [k, v]; edge_index [2, e] and graph
            [k v] count slots and graphs over all clients (graph: -1 for an empty slot).
        slots: v, or None for rows.
        forms: what a model derived from this batch's inputs and edges, such as a normalised adjacency.
            It lives as long as they stay the same.
    """

    batch: Batch
    slots: int | None = None
    forms: dict[str, Any] = field(default_factory=dict)

    def form(self, name: str, build: Callable[[Batch], Any]) -> Any:
        """`build(batch)`, built once."""
        if name not in self.forms:
            self.forms[name] = build(self.batch)
        return self.forms[name]


@dataclass(frozen=True)
class ClientData:
    """One client's own data; the splits are disjoint."""

    train: Examples
    val: Examples
    test: Examples
    spec: DataSpec


@dataclass(frozen=True)
class FederatedData:
    """A data set divided among clients.

    Attributes:
        clients: one entry per partition, in partition order.
        test: the server's test set, disjoint from every client's train and val; None where there is no
            common one (clients with different inputs).
        spec: of the server's model; None where clients differ.
        facts: provenance for the manifest (name, source, files' digest, sizes), JSON values only.
        trusted: the server's own training examples, which no client has; None: it holds none.
    """

    clients: tuple[ClientData, ...]
    test: Examples | None
    spec: DataSpec | None
    facts: Mapping[str, Any]
    trusted: Examples | None = None


@dataclass(frozen=True)
class ClientInfo:
    """What a client method may look at: the client's number and its own data."""

    partition: int
    data: ClientData

    @property
    def spec(self) -> DataSpec:
        """Task, input shape and classes of this client's data."""
        return self.data.spec
