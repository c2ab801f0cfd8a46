"""Which of a client's items train, validate and test."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fedsim.contracts import ClientData, DataSpec, Examples
from fedsim.data.pool import Integers
from fedsim.data.split import apportion, stratified
from fedsim.errors import DataError
from fedsim.rng import numpy_stream


@dataclass(frozen=True)
class Divided:
    """The clients of one data set, the server's test set and how it was made."""

    clients: tuple[ClientData, ...]
    test: Examples | None
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Roles:
    """Draws the splits of some clients.

    Attributes:
        clients: their partition numbers.
        fractions: (train, val, test).
        seed: of the experiment.
    """

    clients: tuple[int, ...]
    fractions: tuple[float, float, float]
    seed: int

    def split(self, parts: list[Integers], labels: Integers) -> list[list[Integers]]:
        """For each client its train, val and test items, stratified by label.

        Raises:
            DataError: a client is too small to train.
        """
        splits = []
        for client, part in zip(self.clients, parts, strict=True):
            sizes = apportion(len(part), np.array(self.fractions))
            rng = numpy_stream(self.seed, "data.split", partition=client)
            chosen = stratified(labels[part], sizes, rng)
            splits.append([part[positions] for positions in chosen])
        self.check(splits)
        return splits

    def check(self, splits: list[list[Integers]]) -> None:
        """Refuse a client without training examples.

        Raises:
            DataError: names the first one.
        """
        for client, split in zip(self.clients, splits, strict=True):
            if not len(split[0]):
                total = sum(len(items) for items in split)
                raise DataError(
                    f"Client {client} has {total} items, which leaves none to train on at split "
                    f"{list(self.fractions)}: take fewer clients, larger parts, or another federation.split."
                )


def laid_out(splits: Sequence[Sequence[Integers]]) -> tuple[Integers, list[int]]:
    """Item numbers role by role (all train parts first), and the bounds of the 3 * clients pieces."""
    pieces = [split[role] for role in range(3) for split in splits]
    bounds = np.cumsum([0, *(len(piece) for piece in pieces)])
    return np.concatenate(pieces), [int(bound) for bound in bounds]


def by_client(pieces: Sequence[Examples], spec: DataSpec) -> tuple[ClientData, ...]:
    """Clients from pieces in the order of `laid_out`."""
    count = len(pieces) // 3
    roles = (pieces[:count], pieces[count : 2 * count], pieces[2 * count :])
    return tuple(ClientData(train, val, test, spec) for train, val, test in zip(*roles, strict=True))
