"""Examples that are where they should not be: in two splits, with several clients, in training and in a test.

An example is recognised by where its label lies in memory (clients and server are views of one pool), and
by a digest of its inputs, which finds copies: inside the data set itself, and where clients that share items
hold them in memory of their own.
"""

import hashlib
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import TypeVar

import numpy as np
import torch

from fedsim.contracts import Examples, FederatedData
from fedsim.data.examples import Graphs, Nodes, Rows

Key = TypeVar("Key", bound=Hashable)


def leakage(data: FederatedData) -> dict[str, int]:
    """Examples in places that exclude each other.

    Returns:
        shared_in_client: examples that are in two splits of one client.
        shared_across_clients: examples that several clients hold, in any split.
        train_in_others_test: test examples of a client that another client trains on.
        shared_with_server: examples of the server's test that are some client's train or val, or that the
            server trusts; and trusted ones that a client holds.
        copies_in_client: test examples whose inputs equal a training example of the same client.
        copies_across_clients: distinct inputs that several clients hold.
        copies_in_others_test: test examples whose inputs equal a training example of another client, and
            none of their own client's.
        copies_in_server: test examples of the server whose inputs equal any client's training example.
            For nodes, equal features only: their neighbourhoods may differ.
    """
    splits = [(client.train, client.val, client.test) for client in data.clients]
    own = [[set(places(split)) for split in client] for client in splits]
    kinds = [[set(digests(split)) for split in client] for client in splits]
    tests = [list(digests(client[2])) for client in splits]
    trained: set[bytes] = set().union(*(client[0] for client in kinds))
    return {
        "shared_in_client": sum(len(a & b) + len(a & c) + len(b & c) for a, b, c in own),
        "shared_across_clients": _held_by_several(own),
        "train_in_others_test": sum(_others(own, [places(client[2]) for client in splits])),
        "shared_with_server": _with_server(data, own),
        "copies_in_client": sum(
            digest in known[0] for test, known in zip(tests, kinds, strict=True) for digest in test
        ),
        "copies_across_clients": _held_by_several(kinds),
        "copies_in_others_test": sum(_others(kinds, tests)),
        "copies_in_server": 0
        if data.test is None
        else sum(digest in trained for digest in digests(data.test)),
    }


def _held_by_several(clients: Sequence[Sequence[set[Key]]]) -> int:
    """How many keys are in the splits of more than one client."""
    owners = Counter(key for splits in clients for key in set().union(*splits))
    return sum(count > 1 for count in owners.values())


def _others(clients: Sequence[Sequence[set[Key]]], tests: Sequence[Iterable[Key]]) -> Iterator[int]:
    """For each client, how many of its test examples others train on and itself does not."""
    trainers = Counter(key for train, _, _ in clients for key in train)
    for (train, _, _), test in zip(clients, tests, strict=True):
        yield sum(trainers[key] > 0 and key not in train for key in test)


def _with_server(data: FederatedData, own: Sequence[Sequence[set[int]]]) -> int:
    """Examples that the server and a client hold where they must not."""
    tested = set() if data.test is None else set(places(data.test))
    trusted = set() if data.trusted is None else set(places(data.trusted))
    trained = set().union(*(train | val for train, val, _ in own))
    held = set().union(*(split for client in own for split in client))
    return len(tested & trained) + len(trusted & tested) + len(trusted & held)


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
