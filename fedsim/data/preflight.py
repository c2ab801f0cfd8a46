"""What `fedsim check` reports of a federation before any round; pure functions, plain values.

An example is recognised by where its label lies in memory (clients and server are views of one pool), and
by a digest of its inputs, which finds copies inside the data set itself.
"""

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import fields
from typing import Any

import numpy as np
import torch

from fedsim.contracts import ClientData, Examples, FederatedData
from fedsim.data.examples import Graphs, Nodes, Rows

_SPLITS = ("train", "val", "test")


def preflight(data: FederatedData) -> dict[str, Any]:
    """Everything below, by name."""
    return {
        "sizes": sizes(data),
        "labels": label_histogram(data),
        "empty": empty_splits(data),
        "leakage": leakage(data),
        "bytes": memory_bytes(data),
    }


def sizes(data: FederatedData) -> list[dict[str, int]]:
    """Examples per split of each client."""
    return [{split: len(getattr(client, split)) for split in _SPLITS} for client in data.clients]


def label_histogram(data: FederatedData) -> list[list[int]]:
    """For each client, how many training examples each of its classes has."""
    return [
        np.bincount(client.train.labels().cpu().numpy(), minlength=client.spec.classes).tolist()
        for client in data.clients
    ]


def empty_splits(data: FederatedData) -> dict[str, list[int]]:
    """The clients whose val or test split is empty; an empty train split never leaves `federate`."""
    return {
        split: [number for number, client in enumerate(data.clients) if not len(getattr(client, split))]
        for split in _SPLITS
    }


def leakage(data: FederatedData) -> dict[str, int]:
    """Training examples that come back in a test: must be 0 except for copies that the data set holds.

    Returns:
        shared_in_client: examples that are in two splits of one client.
        shared_with_server: examples of the server's test that are some client's train or val.
        copies_in_client: test examples whose inputs equal a training example of the same client.
        copies_in_server: test examples of the server whose inputs equal any client's training example.
            For nodes, equal features only: their neighbourhoods may differ.
    """
    own = [_places(client) for client in data.clients]
    seen = set().union(*(train | val for train, val, _ in own))
    trained = [set(digests(client.train)) for client in data.clients]
    everything: set[bytes] = set().union(*trained)
    server = [] if data.test is None else list(digests(data.test))
    return {
        "shared_in_client": sum(len(a & b) + len(a & c) + len(b & c) for a, b, c in own),
        "shared_with_server": 0 if data.test is None else len(set(places(data.test)) & seen),
        "copies_in_client": sum(
            digest in known
            for client, known in zip(data.clients, trained, strict=True)
            for digest in digests(client.test)
        ),
        "copies_in_server": sum(digest in everything for digest in server),
    }


def memory_bytes(data: FederatedData) -> int:
    """Bytes of all tensors, each memory counted once."""
    held: dict[int, int] = {}
    splits = [getattr(client, split) for client in data.clients for split in _SPLITS]
    for examples in [*splits, *([] if data.test is None else [data.test])]:
        for tensor in _tensors(examples):
            storage = tensor.untyped_storage()
            held[storage.data_ptr()] = storage.nbytes()
    return sum(held.values())


def places(examples: Examples) -> list[int]:
    """Where in memory the label of each counted example lies: equal for the same example of one pool."""
    if isinstance(examples, Nodes):
        return (examples.y.data_ptr() + examples.index * examples.y.element_size()).tolist()
    if isinstance(examples, Rows | Graphs):
        labels = examples.y
        return (labels.data_ptr() + torch.arange(len(labels)) * labels.element_size()).tolist()
    return []


def digests(examples: Examples) -> Iterator[bytes]:
    """A digest of each counted example's inputs, as stored; nothing for examples of another kind."""
    if isinstance(examples, Rows):
        return _digests([row] for row in examples.x.cpu().numpy())
    if isinstance(examples, Nodes):
        return _digests([row] for row in examples.x[examples.index].cpu().numpy())
    if isinstance(examples, Graphs):
        graphs = (examples.part(number, number + 1) for number in range(len(examples)))
        return _digests([graph.x.cpu().numpy(), graph.edge_index.cpu().numpy()] for graph in graphs)
    return iter(())


def _digests(arrays: Iterable[list[np.ndarray]]) -> Iterator[bytes]:
    for parts in arrays:
        state = hashlib.blake2b(digest_size=16)
        for part in parts:
            state.update(repr(part.shape).encode())
            state.update(part.tobytes())
        yield state.digest()


def _places(client: ClientData) -> tuple[set[int], set[int], set[int]]:
    return set(places(client.train)), set(places(client.val)), set(places(client.test))


def _tensors(examples: Any) -> Iterator[torch.Tensor]:
    for field in fields(examples):
        value = getattr(examples, field.name)
        if isinstance(value, torch.Tensor):
            yield value
