"""Stacked examples that a worker keeps, so that what is derived from graphs is derived once."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from fedsim.contracts import ClientInfo, StackedExamples
from fedsim.training.stacked_lists import together

_REMEMBERED = 10_000  # sets of clients


@dataclass
class KeptStacks:
    """Keeps the stack of a set of clients that comes a second time; sampled cohorts hardly ever do.

    Together the kept stacks hold no more clients than there are, so that memory is bounded by the data.

    Attributes:
        clients: of the federation.
    """

    clients: int
    _seen: set[tuple[int, ...]] = field(default_factory=set)
    _kept: dict[tuple[int, ...], StackedExamples] = field(default_factory=dict)

    def __call__(self, clients: Sequence[ClientInfo]) -> StackedExamples:
        """The stacked training splits, in the order given."""
        key = tuple(client.partition for client in clients)
        if key in self._kept:
            return self._kept[key]
        found = together([client.data.train for client in clients])
        if key in self._seen and sum(map(len, self._kept)) + len(key) <= self.clients:
            self._kept[key] = found
        if len(self._seen) < _REMEMBERED:
            self._seen.add(key)
        return found
