"""Which clients take a step together: those whose next batch has the same number of examples.

Clients do not interact, so within an epoch every client first takes its full batches, and then its smaller
last one beside others with a last batch of that size. Every stacked step is thus made of whole batches:
means over examples, BatchNorm and per-example gradients are those of one client alone, and nothing has to
be masked. Clients come largest first, so that those with a further full batch are the first rows.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedsim.contracts import Phase

Rows = slice | Tensor


@dataclass(frozen=True)
class Group:
    """Clients that take a step together.

    Attributes:
        clients: their places in the stack, ascending.
        rows: the same, as a slice where they lie side by side, else [k] int64.
        index: [k, b] int64, each client's examples; None: all of them, in their order.
        counts: each client's number of examples in the step, [k] int64, or one number for all.
    """

    clients: Sequence[int]
    rows: Rows
    index: Tensor | None
    counts: int | Tensor


def groups(
    phase: Phase, sizes: Sequence[int], ragged: bool, stream: Callable[[int], torch.Generator]
) -> Iterator[Group]:
    """The steps of all epochs of a phase.

    Args:
        phase: says how many epochs, and how many examples per step.
        sizes: examples of each client, largest first.
        ragged: may clients of different sizes take a step over all their examples together?
        stream: makes a client's generator of permutations; not asked where one batch holds all examples.
    """
    most = phase.batch_size
    shuffled = 0 if most is None else sum(size > most for size in sizes)
    counts = torch.tensor(sizes)
    whole = [_group(same, None, counts[same]) for same in _whole(sizes, shuffled, ragged)]
    orders = [_permutations(sizes[i], phase.epochs, stream(i)) for i in range(shuffled)]
    parts = [] if most is None else list(_parts(sizes[:shuffled], most))
    for epoch in range(phase.epochs):
        yield from whole
        if shuffled:
            order = torch.cat([own[epoch] for own in orders])
            for clients, places in parts:
                yield _group(clients, order[places], places.shape[1])


def _permutations(size: int, epochs: int, generator: torch.Generator) -> list[Tensor]:
    return [torch.randperm(size, generator=generator) for _ in range(epochs)]


def _whole(sizes: Sequence[int], first: int, ragged: bool) -> list[list[int]]:
    """The clients from `first` on, together where they see equally many examples."""
    if ragged:
        return [list(range(first, len(sizes)))] if first < len(sizes) else []
    return _alike({client: sizes[client] for client in range(first, len(sizes))})


def _parts(sizes: Sequence[int], most: int) -> Iterator[tuple[Sequence[int], Tensor]]:
    """(clients, [k, b] places in their permutations laid end to end) of each step of an epoch."""
    ends = torch.tensor(sizes).cumsum(0)
    starts = ends - torch.tensor(sizes)
    for step in range(max(sizes, default=0) // most):
        active = sum(size >= (step + 1) * most for size in sizes)
        yield range(active), starts[:active, None] + step * most + torch.arange(most)
    for same in _alike({client: size % most for client, size in enumerate(sizes) if size % most}):
        rest = sizes[same[0]] % most
        yield same, ends[same, None] - rest + torch.arange(rest)


def _alike(numbers: dict[int, int]) -> list[list[int]]:
    found: defaultdict[int, list[int]] = defaultdict(list)
    for client, number in numbers.items():
        found[number].append(client)
    return list(found.values())


def _group(clients: Sequence[int], index: Tensor | None, counts: int | Tensor) -> Group:
    first, last = clients[0], clients[-1]
    side_by_side = last - first + 1 == len(clients)
    return Group(clients, slice(first, last + 1) if side_by_side else torch.tensor(clients), index, counts)
