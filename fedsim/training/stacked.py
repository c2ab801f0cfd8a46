"""Many clients at once (tier T2): their tensors stacked, every step one computation for all of them.

Clients whose programs have the same `stack` key, and private tensors of the same names and shapes, run
the first one's closures. The random streams are those of T1, and so are the results within rounding.
"""

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from fedsim.contracts import (
    ClientInfo,
    ClientMethod,
    Context,
    LocalProgram,
    LocalUpdate,
    StackedExamples,
    Tensors,
)
from fedsim.errors import RoundError
from fedsim.federation import Order
from fedsim.metrics import Sum
from fedsim.training.functional import model_tensors, parameter_names, shared_layout, tensors_on
from fedsim.training.method import adds_private, finished, finishes
from fedsim.training.private import (
    OPTIMIZER_PREFIX,
    optimizer_state,
    private_tensors,
    refuse_reserved,
    saved_optimizer,
)
from fedsim.training.received import Received
from fedsim.training.returned import returned
from fedsim.training.stacked_run import StackedRun
from fedsim.training.trained import Trained

_CPU = torch.device("cpu")
_NOTHING: Tensors = {}
Together = Callable[[Sequence[ClientInfo]], StackedExamples]


class Member(NamedTuple):
    """A client with its program and what it kept.

    Attributes:
        client: its number and data.
        size: its training examples.
        program: of the round.
        private: its private tensors at the start of the round, without optimiser state.
        kept: what its last round left, optimiser state included; None at first use.
    """

    client: ClientInfo
    size: int
    program: LocalProgram
    private: Tensors
    kept: Tensors | None


class Census:
    """Sorts the clients of a task into stacks: those with equal keys and alike private tensors."""

    def __init__(self, method: ClientMethod, round: int, seed: int) -> None:
        """Ask `method` for the programs of `round`."""
        self._method, self._round, self._seed = method, round, seed
        self._adds_private = adds_private(method)
        self._programs: dict[int, _Known] = {}  # by identity: methods may return one program for many
        self._numbers: dict[Hashable, int] = {}
        self.stacks: dict[Hashable, list[Member]] = {}

    def add(self, client: ClientInfo, kept: Tensors | None) -> None:
        """Find the client's stack; one whose program has no key joins none.

        Raises:
            RoundError: as `train_client` does.
        """
        size = len(client.data.train)
        if not size:
            raise RoundError(f"Client {client.partition} has no training examples, so it cannot train.")
        program = self._method.program(client, self._round)
        known = self._programs.get(id(program)) or self._known(program)
        if known.number is None:
            return
        private: Tensors = {}
        if kept or not known.shares_all or (kept is None and self._adds_private):
            private = private_tensors(self._method, client, program, kept, self._seed)
        shapes = _shapes(private, kept) if private or kept else ()
        key = (known.number, type(client.data.train), shapes)
        self.stacks.setdefault(key, []).append(Member(client, size, program, private, kept))

    def _known(self, program: LocalProgram) -> "_Known":
        number = None
        if program.stack is not None:
            number = self._numbers.setdefault(program.stack, len(self._numbers))
        shares_all = all(program.is_shared(name) for name in model_tensors(program.model))
        found = self._programs[id(program)] = _Known(program, number, shares_all)
        return found


def _shapes(private: Tensors, kept: Tensors | None) -> tuple[Hashable, ...]:
    """Names, shapes and types of private tensors and of the optimiser's state."""
    state = {name: value for name, value in (kept or {}).items() if name.startswith(OPTIMIZER_PREFIX)}
    return tuple((n, v.shape, v.dtype) for n, v in (*private.items(), *state.items()))


class _Known(NamedTuple):
    """A program (kept alive, so that its identity stays its own), its key's number, is all of it shared?"""

    program: LocalProgram
    number: int | None
    shares_all: bool


def train_stacked(
    method: ClientMethod,
    members: Sequence[Member],
    order: Order,
    seed: int,
    *,
    received: Received,
    together: Together,
) -> list[LocalUpdate]:
    """One round of clients with equal keys; their updates in the order given.

    Args:
        method: what the clients do.
        members: the clients.
        order: the shared model and the rule's downlink.
        seed: of the run.
        received: the order's model.
        together: the stacked training splits of clients, in the order given.

    Raises:
        RoundError: a program contradicts itself; which client's is found out by running them alone.
        Unstackable: the program cannot run stacked.
    """
    places = sorted(range(len(members)), key=lambda place: -members[place].size)
    ranked = [members[place] for place in places]
    run = _start(ranked, order, seed, received, together([one.client for one in ranked]))
    keeps = run.program.keep_optimizer
    trained = [
        run.run(phase, str(number), _saved(ranked, number) if keeps else ())
        for number, phase in enumerate(run.program.phases)
    ]
    updates = _updates(method, run, ranked, trained)
    return [update for _, update in sorted(zip(places, updates, strict=True), key=lambda pair: pair[0])]


def _start(
    members: Sequence[Member], order: Order, seed: int, received: Received, examples: StackedExamples
) -> StackedRun:
    program, clients, device = members[0].program, len(members), order.vector.device
    template, parameters = tensors_on(device, program.model), parameter_names(program.model)
    received.check(shared_layout(program.model, program.is_shared))
    private = _stack([one.private for one in members], device)
    additional = [name for name in private if name not in template]
    common = {name: value for name, value in received.anchor.items() if name in parameters}
    buffers = {
        name: value.expand(clients, *value.shape).clone()
        for name, value in received.anchor.items()
        if name not in parameters
    }
    own = {name: value if name in parameters else value.clone() for name, value in private.items()}
    return StackedRun(
        partitions=[one.client.partition for one in members],
        sizes=[one.size for one in members],
        program=program,
        received=received,
        common=common,
        own=own | buffers,
        order=[*template, *additional],
        additional=frozenset(additional),
        context=Context(received.anchor, private, order.downlink, order.round),
        examples=examples,
        seed=seed,
    )


def _stack(named: Sequence[Tensors], device: torch.device) -> dict[str, Tensor]:
    return {name: torch.stack([one[name] for one in named]).to(device) for name in named[0]}


def _saved(members: Sequence[Member], phase: int) -> list[dict[str, Tensor]]:
    """The optimiser state of one phase, [c, ...] each and [c, 1] for scalars."""
    kept = [saved_optimizer(one.kept, phase) for one in members]
    stacked = [_stack([one[group] for one in kept], _CPU) for group in range(len(kept[0]))]
    return [{n: v.unsqueeze(1) if v.dim() == 1 else v for n, v in one.items()} for one in stacked]


def _updates(
    method: ClientMethod, run: StackedRun, members: Sequence[Member], trained: Sequence[Trained]
) -> list[LocalUpdate]:
    layout, after = run.received.layout, {name: run.stacked(name) for name in run.order}
    kept = optimizer_state(trained) if run.program.keep_optimizer else {}
    ends = finishes(method) or bool(run.context.private)
    moved = _moved(run, trained, still_needed=ends).to(_CPU).unbind(0)
    told = zip(moved, run.losses.tolist(), run.counts.tolist(), run.steps.tolist(), strict=True)
    updates = []
    for place, (update, loss, count, steps) in enumerate(told):
        one, tensors = members[place], _Row(after, place)
        uplink, left = _finished(method, run.context, tensors, steps) if ends else (_NOTHING, _NOTHING)
        updates.append(
            LocalUpdate(
                partition=one.client.partition,
                update=update,
                integers=returned(layout.integers_of(tensors)) if layout.integers else {},
                examples=one.size,
                steps=steps,
                uplink=returned(uplink) if uplink else {},
                metrics={"train_loss": Sum(loss, float(count))},
                private=returned({**left, **_Row(kept, place)}) if left or kept else {},
            )
        )
    return updates


def _finished(
    method: ClientMethod, context: Context, tensors: Tensors, steps: int
) -> tuple[Tensors, Tensors]:
    """What one client's `finish` makes of its tensors."""
    own = {name: tensors[name] for name in context.private}
    uplink, left = finished(method, context.anchor, tensors, own, context.downlink, steps)
    refuse_reserved(left)
    return uplink, left


@dataclass(frozen=True)
class _Row(Mapping[str, Tensor]):
    """One client's part of stacked tensors; views, made when asked for."""

    stacked: Tensors
    place: int

    def __getitem__(self, name: str) -> Tensor:
        return self.stacked[name][self.place]

    def __iter__(self) -> Iterator[str]:
        return iter(self.stacked)

    def __len__(self) -> int:
        return len(self.stacked)


def _moved(run: StackedRun, trained: Sequence[Trained], *, still_needed: bool) -> Tensor:
    """[c, d], the shared tensors after minus before; in place unless the trained ones are still needed."""
    before, clients = run.received.vector, len(run.partitions)
    if not run.received.names:  # nothing is federated
        return before.new_zeros(clients, 0)
    if len(trained) == 1 and list(trained[0].leaves) == run.received.names:
        after = trained[0].vector.to(before.dtype)
        return after - before if still_needed else after.sub_(before)
    parts = [run.stacked(name).detach().reshape(clients, -1).to(before.dtype) for name in run.received.names]
    return torch.cat(parts, dim=1).sub_(before)
