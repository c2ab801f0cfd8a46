"""Many clients at once (tier T2): their tensors stacked, every step one computation for all of them.

Clients whose programs have the same `stack` key, and private tensors of the same names and shapes, run
the first one's closures. The random streams are those of T1, and so are the results within rounding.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedsim.contracts import ClientInfo, ClientMethod, Context, LocalProgram, LocalUpdate, StackedExamples, Tensors
from fedsim.errors import RoundError
from fedsim.federation import TrainOrder
from fedsim.metrics import Sum
from fedsim.training.functional import parameter_names, shared_layout, tensors_on
from fedsim.training.private import OPTIMIZER_PREFIX, optimizer_state, private_tensors, saved_optimizer
from fedsim.training.received import Received
from fedsim.training.returned import returned
from fedsim.training.stacked_run import StackedRun
from fedsim.training.trained import Trained

_CPU = torch.device("cpu")
Together = Callable[[Sequence[ClientInfo]], StackedExamples]


@dataclass(frozen=True)
class Member:
    """A client with its program and what it kept.

    Attributes:
        client: its number and data.
        program: of the round.
        private: its private tensors at the start of the round, without optimiser state.
        kept: what its last round left, optimiser state included; None at first use.
    """

    client: ClientInfo
    program: LocalProgram
    private: Tensors
    kept: Tensors | None

    @property
    def size(self) -> int:
        """Its training examples."""
        return len(self.client.data.train)

    @property
    def key(self) -> Any:
        """Members with equal keys may be stacked; None: this one may not."""
        if self.program.stack is None:
            return None
        state = {n: v for n, v in (self.kept or {}).items() if n.startswith(OPTIMIZER_PREFIX)}
        shapes = tuple((n, v.shape, v.dtype) for n, v in (*self.private.items(), *state.items()))
        return self.program.stack, shapes, type(self.client.data.train)


def member(
    method: ClientMethod, client: ClientInfo, order: TrainOrder, kept: Tensors | None, seed: int
) -> Member:
    """A client at the start of a round.

    Raises:
        RoundError: as `train_client` does.
    """
    if not len(client.data.train):
        raise RoundError(f"Client {client.partition} has no training examples, so it cannot train.")
    program = method.program(client, order.round)
    return Member(client, program, private_tensors(method, client, program, kept, seed), kept)


def train_stacked(
    method: ClientMethod,
    members: Sequence[Member],
    order: TrainOrder,
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
    members: Sequence[Member], order: TrainOrder, seed: int, received: Received, examples: StackedExamples
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
    clients, layout, private = len(members), run.received.layout, run.context.private
    after = _rows({name: run.stacked(name) for name in run.order}, clients)
    kept = _rows(optimizer_state(trained) if run.program.keep_optimizer else {}, clients)
    moved = _moved(run, trained).to(_CPU).unbind(0)
    totals = run.losses.tolist()
    updates = []
    for place, one in enumerate(members):
        own = {name: after[place][name] for name in private}
        context = run.context
        uplink, left = method.finish(
            context.anchor, after[place], own, context.downlink, run.steps[place]
        )
        for name in left:
            if name.startswith(OPTIMIZER_PREFIX):
                raise RoundError(f"Private tensor {name!r}: names under {OPTIMIZER_PREFIX!r} are reserved.")
        updates.append(
            LocalUpdate(
                partition=one.client.partition,
                update=moved[place],
                integers=returned(layout.integers_of(after[place])) if layout.integers else {},
                examples=one.size,
                steps=run.steps[place],
                uplink=returned(uplink),
                metrics={"train_loss": Sum(totals[place], float(run.counts[place]))},
                private=returned({**left, **kept[place]}),
            )
        )
    return updates


def _rows(stacked: Tensors, clients: int) -> list[dict[str, Tensor]]:
    """A client's part of each tensor, for every client; views."""
    if not stacked:
        return [{} for _ in range(clients)]
    columns = [value.unbind(0) for value in stacked.values()]
    return [dict(zip(stacked, row, strict=True)) for row in zip(*columns, strict=True)]


def _moved(run: StackedRun, trained: Sequence[Trained]) -> Tensor:
    """[c, d], the shared tensors after minus before."""
    before, clients = run.received.vector, len(run.partitions)
    if len(trained) == 1 and list(trained[0].leaves) == run.received.names:
        return trained[0].vector.to(before.dtype) - before
    parts = [run.stacked(name).detach().reshape(clients, -1).to(before.dtype) for name in run.received.names]
    return torch.cat(parts, dim=1).sub_(before)
