"""Where clients' private tensors lie between rounds, as the server sees it: on their nodes, or in the driver.

On nodes of their own the tensors never leave the node; the server knows only which round's count. Where our
own grid runs in this process, nodes are the driver's book-keeping: the tensors then lie in the run's store,
which spills to disk and is part of every checkpoint, and a node has them only while it works.
"""

from collections.abc import Sequence
from typing import Protocol

from flwr.app import RecordDict

from fedsim.flower.private_state import EMPTY, NEVER, STORED, UNKNOWN, committed_state, pending_tensors
from fedsim.run.private_store import PrivateStore


class PrivatePlace(Protocol):
    """Keeps account of which private tensors of a client count."""

    def mark(self, partition: int, round: int) -> int:
        """What an order of this round calls the client's accepted tensors; they are on its node then."""
        ...

    def returned(self, partition: int, round: int, keeps: bool) -> None:
        """The client trained in this round, and keeps private tensors or none."""
        ...

    def commit(self, partitions: Sequence[int]) -> None:
        """Tensors that these clients returned count from now on; those of the others are forgotten."""
        ...

    def rest(self, partitions: Sequence[int]) -> None:
        """These clients were evaluated: nothing of theirs has changed."""
        ...


class OnNodes:
    """Tensors that lie in their nodes' contexts; a run that is resumed cannot know them."""

    def __init__(self) -> None:
        self._accepted: dict[int, int] = {}  # partition -> round whose private tensors count
        self._returned: dict[int, int] = {}  # the same for the last train, not yet decided
        self._unasked: int | None = None  # what is accepted of a client that this object never trained

    def mark(self, partition: int, round: int) -> int:
        """The round whose tensors count, or a code of `private_state`."""
        if self._unasked is None:
            # A first order of a later round means a resumed run: earlier private tensors lie elsewhere.
            self._unasked = NEVER if round == 1 else UNKNOWN
        return self._accepted.get(partition, self._unasked)

    def returned(self, partition: int, round: int, keeps: bool) -> None:
        """To be decided by `commit`."""
        self._returned[partition] = round if keeps else EMPTY

    def commit(self, partitions: Sequence[int]) -> None:
        """Change the marks; nodes hear of it with their next order."""
        for partition in partitions:
            if partition in self._returned:
                self._accepted[partition] = self._returned[partition]
        self._returned = {}

    def rest(self, partitions: Sequence[int]) -> None:
        """Nothing to do: nodes keep what they have."""


class Contexts(Protocol):
    """A grid that keeps its nodes' contexts in this process."""

    def state_of(self, partition: int) -> RecordDict:
        """What the node's context holds."""
        ...

    def set_state(self, partition: int, state: RecordDict) -> None:
        """Replace it."""
        ...


class InStore:
    """Tensors that lie in the run's own store."""

    def __init__(self, store: PrivateStore, grid: Contexts, seed: int) -> None:
        """Take over a store, perhaps of a run that is resumed; orders carry the seed."""
        self._store, self._grid, self._seed = store, grid, seed
        self._returned: dict[int, tuple[int, bool]] = {}

    def mark(self, partition: int, round: int) -> int:
        """Put the stored tensors into the node's context."""
        tensors = self._store.get(partition)
        if not tensors:
            self._grid.set_state(partition, RecordDict())
            return NEVER if tensors is None else EMPTY
        self._grid.set_state(partition, committed_state(self._seed, STORED, tensors))
        return STORED

    def returned(self, partition: int, round: int, keeps: bool) -> None:
        """To be decided by `commit`."""
        self._returned[partition] = round, keeps

    def commit(self, partitions: Sequence[int]) -> None:
        """Move the tensors from the nodes' contexts into the store."""
        for partition in partitions:
            if partition in self._returned:
                number, keeps = self._returned[partition]
                state = self._grid.state_of(partition)
                self._store.put(partition, pending_tensors(state, self._seed, number) if keeps else {})
        self.rest(list(self._returned))
        self._returned = {}

    def rest(self, partitions: Sequence[int]) -> None:
        """Empty the nodes' contexts."""
        for partition in partitions:
            self._grid.set_state(partition, RecordDict())
