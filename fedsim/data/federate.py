"""From a data set to a federation: divide, split, hold out, and keep every tensor once.

The items of a data set are reordered so that each client's split is a contiguous view of one pool. The
server's test set never meets a client's training or validation examples: for rows it is the set's own test
split, or a fraction held out before the division; for graphs it is the union of the clients' test splits;
for nodes it is the undivided graph, where the clients' test nodes count.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fedsim.contracts import ClientData, FederatedData, Task
from fedsim.data.divide_graphs import divide_graphs
from fedsim.data.divide_nodes import divide_nodes
from fedsim.data.divide_rows import divide_rows, hold_out, take_rows
from fedsim.data.examples import Rows
from fedsim.data.pool import Integers, Items, NodePool, Partition, Pool, RowPool, Source
from fedsim.data.roles import Divided, Roles
from fedsim.errors import ConfigError, DataError
from fedsim.rng import numpy_stream

_FRACTIONS: dict[Task, tuple[float, float, float]] = {
    "rows": (0.8, 0.1, 0.1),
    "nodes": (0.2, 0.4, 0.4),  # the protocol of FED-PUB (Baek et al. 2023)
    "graphs": (0.8, 0.1, 0.1),
}


def federate(
    source: Source,
    partition: Partition,
    clients: int,
    split: tuple[float, float, float] | None,
    seed: int,
    *,
    trusted: int = 0,
) -> FederatedData:
    """The clients of one experiment; a pure function of the files, the arguments and the seed.

    Args:
        source: the `[data]` table.
        partition: the `federation.partition` table.
        clients: how many.
        split: fractions (train, val, test) of each client's items; None: 0.8, 0.1, 0.1 for rows and graphs,
            0.2, 0.4, 0.4 for nodes.
        seed: of the experiment.
        trusted: rows that the server takes from the training data before they are divided.

    Raises:
        ConfigError: `clients`, `split` or `trusted` makes no sense.
        DataError: the set cannot be loaded, or not be divided as asked.
    """
    _check(clients, split)
    pools = tuple(hold_out(pool, seed) if isinstance(pool, RowPool) else pool for pool in source.load())
    pools, kept = _without_trusted(pools, trusted, seed)
    items = _items(pools)
    parts = partition.divide(items, clients, numpy_stream(seed, "data.partition"))
    homes = _homes(parts, items, clients, type(partition).__name__)
    divided = []
    for number, pool in enumerate(pools):
        members = [client for client, home in enumerate(homes) if home == number]
        start = int(np.flatnonzero(items.dataset == number)[0])
        own = [np.asarray(parts[client], dtype=np.int64) - start for client in members]
        roles = Roles(tuple(members), split or _FRACTIONS[pool.task], seed)
        divided.append((members, _divide(pool, own, roles)))
    joined = _joined(pools, divided, len(items), parts)
    return joined if kept is None else _with_trusted(joined, kept)


def _without_trusted(
    pools: tuple[Pool, ...], trusted: int, seed: int
) -> tuple[tuple[Pool, ...], Rows | None]:
    """The pools, and the rows that the server keeps of the only one.

    Raises:
        ConfigError: rows cannot be kept of this data, or not so many.
    """
    if not trusted:
        return pools, None
    pool = pools[0]
    if len(pools) > 1 or not isinstance(pool, RowPool):
        raise ConfigError(
            f"federation.trusted: the server can hold rows of one data set, not {pool.task} of {pool.name}."
        )
    if trusted >= len(pool.rows):
        raise ConfigError(
            f"federation.trusted: found {trusted}, but {pool.name} has {len(pool.rows)} training rows in all."
        )
    rest, kept = take_rows(pool, trusted, seed)
    return (rest,), kept


def _with_trusted(data: FederatedData, kept: Rows) -> FederatedData:
    """The server's rows, standardised like the clients'."""
    first = data.clients[0].train
    mean, std = getattr(first, "mean", None), getattr(first, "std", None)
    facts = {**data.facts, "trusted": len(kept), "trusted_origin": "training rows, before the division"}
    return replace(data, trusted=replace(kept, mean=mean, std=std), facts=facts)


def _divide(pool: Pool, parts: list[Integers], roles: Roles) -> Divided:
    if isinstance(pool, NodePool):
        return divide_nodes(pool, parts, roles)
    everything = np.concatenate(parts)
    if len(np.unique(everything)) != len(everything):
        raise DataError(
            f"federation.partition: gives items of {pool.name} to several clients; only nodes may overlap."
        )
    if isinstance(pool, RowPool):
        return divide_rows(pool, parts, roles)
    return divide_graphs(pool, parts, roles)


def _check(clients: int, split: tuple[float, float, float] | None) -> None:
    if clients < 1:
        raise ConfigError(f"federation.clients must be at least 1, found {clients}.")
    if split is None:
        return
    if len(split) != 3 or min(split) < 0.0 or not split[0] > 0.0 or abs(sum(split) - 1.0) > 1e-6:
        raise ConfigError(
            "federation.split must be three fractions (train, val, test) that sum to 1, with train above 0; "
            f"found {list(split)}."
        )


def _items(pools: tuple[Pool, ...]) -> Items:
    """All items end to end, as a partition sees them."""
    labels = [_labels(pool) for pool in pools]
    sizes = [len(own) for own in labels]
    if 0 in sizes:
        raise DataError(f"The data set {pools[sizes.index(0)].name} is empty.")
    edges = [pool.edge_index.numpy() for pool in pools if isinstance(pool, NodePool)]
    ids = [pool.ids.numpy() for pool in pools if isinstance(pool, RowPool) and pool.ids is not None]
    return Items(
        labels=np.concatenate(labels),
        dataset=np.repeat(np.arange(len(pools)), sizes),
        edge_index=edges[0] if len(edges) == len(pools) == 1 else None,
        ids=ids[0] if len(ids) == len(pools) == 1 else None,
    )


def _labels(pool: Pool) -> Integers:
    if isinstance(pool, RowPool):
        return pool.rows.y.numpy()
    return (pool.y if isinstance(pool, NodePool) else pool.graphs.y).numpy()


def _homes(parts: Sequence[Integers], items: Items, clients: int, partition: str) -> list[int]:
    """The data set of each client, after checking what the partition returned."""
    if len(parts) != clients:
        raise DataError(f"federation.partition: {partition} made {len(parts)} parts for {clients} clients.")
    sizes = np.array([len(part) for part in parts])
    if not sizes.all():
        raise DataError(
            f"federation.partition: {partition} leaves client {int(sizes.argmin())} empty: "
            "take fewer clients, or change its options."
        )
    owner, together = np.repeat(np.arange(clients), sizes), np.concatenate(parts).astype(np.int64)
    pairs = np.unique(owner * len(items) + together)
    if together.min() < 0 or together.max() >= len(items) or len(pairs) != len(together):
        raise DataError(f"federation.partition: {partition} gives a client repeated or unknown items.")
    sets = items.dataset[together]
    homes = sets[np.cumsum(sizes) - sizes]
    mixed = owner[sets != homes[owner]]
    if len(mixed):
        raise DataError(
            f"federation.partition: {partition} mixes several data sets in client {mixed[0]}: "
            'with several data sets use partition = "per_dataset".'
        )
    return [int(home) for home in homes]


def _joined(
    pools: tuple[Pool, ...],
    divided: list[tuple[list[int], Divided]],
    items: int,
    parts: Sequence[Integers],
) -> FederatedData:
    by_number: dict[int, ClientData] = {}
    for members, result in divided:
        by_number.update(zip(members, result.clients, strict=True))
    clients = tuple(by_number[number] for number in sorted(by_number))
    specs = {client.spec for client in clients}
    common = divided[0][1] if len(pools) == 1 else None
    assigned = np.concatenate(parts)
    facts: dict[str, Any] = {
        "name": ", ".join(pool.name for pool in pools),
        "clients": len(clients),
        "items": items,
        "unassigned": items - len(np.unique(assigned)),
        "shared_items": int((np.unique(assigned, return_counts=True)[1] > 1).sum()),
        "sizes": [[len(client.train), len(client.val), len(client.test)] for client in clients],
        "labels": [_histogram(client) for client in clients],
        "empty_val": [number for number, client in enumerate(clients) if not len(client.val)],
        "empty_test": [number for number, client in enumerate(clients) if not len(client.test)],
        "sets": [
            {"name": pool.name, "clients": members, **pool.facts, **result.facts}
            for pool, (members, result) in zip(pools, divided, strict=True)
        ],
    }
    return FederatedData(
        clients=clients,
        test=common.test if common else None,
        spec=specs.pop() if len(specs) == 1 else None,
        facts=facts,
    )


def _histogram(client: ClientData) -> list[int]:
    """[classes] how many of the client's items, all splits together, have each label."""
    splits = (client.train, client.val, client.test)
    labels = np.concatenate([split.labels().numpy() for split in splits])
    return [int(count) for count in np.bincount(labels, minlength=client.spec.classes)]
