"""The nodes of one graph among clients: induced subgraphs; edges between parts are dropped and counted."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedsim.contracts import ClientData, DataSpec
from fedsim.data.examples import Nodes
from fedsim.data.pool import Integers, NodePool
from fedsim.data.roles import Divided, Roles
from fedsim.data.split import apportion, stratified
from fedsim.rng import numpy_stream


def divide_nodes(pool: NodePool, parts: list[Integers], roles: Roles) -> Divided:
    """The clients of one graph.

    Where parts overlap, a node has the same role at all its clients, so that nobody trains on a node that
    another client, or the server, is tested on. The server's test set is the whole graph, edges between
    parts included, with the clients' test nodes counted.
    """
    labels = pool.y.numpy()
    members = np.concatenate(parts)
    overlap = len(members) - len(np.unique(members))
    splits = _common_roles(parts, labels, roles) if overlap else roles.split(parts, labels)
    tested = np.unique(np.concatenate([split[2] for split in splits]))
    if overlap:
        held, server = _taken(pool, members), _counted(pool, np.arange(len(labels)), tested)
    else:
        rest = np.setdiff1d(np.arange(len(labels)), members)
        order = np.concatenate([members, rest])
        held = _taken(pool, order)  # the server's graph and the clients' nodes are the same memory
        server = _counted(replace(pool, x=held[0], y=held[1]), order, tested)
    clients, dropped = _clients(pool, parts, splits, held)
    facts: dict[str, Any] = {
        "server_test": "the undivided graph; the clients' test nodes count",
        "server_test_size": len(server),
        "edges": pool.edge_index.shape[1],
        "dropped_edges": dropped,
        "train_in_others_test": _crossing(splits, len(labels)),
        "roles": "drawn once for all clients" if overlap else "drawn per client",
    }
    return Divided(clients, server if len(server) else None, facts)


def _common_roles(parts: list[Integers], labels: Integers, roles: Roles) -> list[list[Integers]]:
    """Splits where every node keeps one role over all clients."""
    nodes = np.unique(np.concatenate(parts))
    sizes = apportion(len(nodes), np.array(roles.fractions))
    rng = numpy_stream(roles.seed, "data.split", partition=roles.clients[0])
    role = np.empty(len(labels), dtype=np.int64)
    for number, positions in enumerate(stratified(labels[nodes], sizes, rng)):
        role[nodes[positions]] = number
    splits = [[part[role[part] == number] for number in range(3)] for part in parts]
    roles.check(splits)
    return splits


def _crossing(splits: list[list[Integers]], nodes: int) -> int:
    """Test nodes of a client that another client trains on, summed over clients."""
    trained = np.bincount(np.concatenate([split[0] for split in splits]), minlength=nodes)
    return sum(int((trained[test] - np.isin(test, train) > 0).sum()) for train, _, test in splits)


def _taken(pool: NodePool, order: Integers) -> tuple[Tensor, Tensor]:
    at = torch.from_numpy(order)
    return pool.x.index_select(0, at), pool.y.index_select(0, at)


def _counted(pool: NodePool, order: Integers, counted: Integers) -> Nodes:
    """The whole graph of a pool whose x and y are already in `order`; edges and `counted` are not yet."""
    place = np.empty(len(order), dtype=np.int64)
    place[order] = np.arange(len(order))
    edges = torch.from_numpy(place[pool.edge_index.numpy()])
    return Nodes(pool.x, edges, pool.y, torch.from_numpy(np.sort(place[counted])))


def _clients(
    pool: NodePool, parts: list[Integers], splits: list[list[Integers]], held: tuple[Tensor, Tensor]
) -> tuple[tuple[ClientData, ...], int]:
    """The clients, as views of `held` (x and y, part after part), and how many edges nobody kept."""
    edges = pool.edge_index.numpy()
    kept = np.zeros(edges.shape[1], dtype=bool)
    place = np.full(len(pool.y), -1, dtype=np.int64)
    subgraphs, indices = [], []
    for part, split in zip(parts, splits, strict=True):
        place[part] = np.arange(len(part))
        local = place[edges]
        inside = (local >= 0).all(axis=0)
        kept |= inside
        subgraphs.append(local[:, inside])
        indices += [np.sort(place[nodes]) for nodes in split]
        place[part] = -1
    spec = DataSpec("nodes", (pool.x.shape[1],), pool.classes)
    bounds = np.cumsum([0, *(len(part) for part in parts)])
    graphs = [
        (held[0][start:stop], edge_index, held[1][start:stop])
        for (start, stop), edge_index in zip(pairwise(bounds), _views(subgraphs), strict=True)
    ]
    counted = _views(indices)
    clients = [
        ClientData(
            train=Nodes(*graph, counted[3 * number]),
            val=Nodes(*graph, counted[3 * number + 1]),
            test=Nodes(*graph, counted[3 * number + 2]),
            spec=spec,
        )
        for number, graph in enumerate(graphs)
    ]
    return tuple(clients), int((~kept).sum())


def _views(arrays: list[Integers]) -> list[Tensor]:
    """The arrays as slices of one tensor, along the last axis."""
    together = torch.from_numpy(np.concatenate(arrays, axis=-1))
    return list(torch.split(together, [array.shape[-1] for array in arrays], dim=-1))
