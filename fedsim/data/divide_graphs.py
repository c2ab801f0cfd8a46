"""Whole graphs among clients, as views into one reordered packing."""

from itertools import pairwise

import torch

from fedsim.contracts import DataSpec
from fedsim.data.pool import GraphPool, Integers
from fedsim.data.roles import Divided, Roles, by_client, laid_out


def divide_graphs(pool: GraphPool, parts: list[Integers], roles: Roles) -> Divided:
    """The clients of one set of graphs; the server's test set is the union of their test splits."""
    splits = roles.split(parts, pool.graphs.y.numpy())
    order, bounds = laid_out(splits)
    graphs = pool.graphs.reordered(torch.from_numpy(order))
    spec = DataSpec("graphs", (graphs.x.shape[1],), pool.classes)
    views = [graphs.part(start, stop) for start, stop in pairwise(bounds)]
    test = graphs.part(bounds[2 * len(parts)], bounds[-1])
    return Divided(
        by_client(views, spec),
        test if len(test) else None,
        {"server_test": "union of the clients' test splits", "server_test_size": len(test)},
    )
