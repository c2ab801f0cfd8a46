"""What an engine's worker does with an order: train or evaluate its clients, one after the other."""

import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch

from fedsim.contracts import (
    ClientData,
    ClientInfo,
    ClientMethod,
    Detour,
    Failure,
    FederatedData,
    LocalEvaluation,
    LocalUpdate,
    Tensors,
)
from fedsim.engine.protocols import Task, WorkerPlace
from fedsim.federation import EvaluateOrder, Order, TrainOrder
from fedsim.params import Layout
from fedsim.threat import Attack
from fedsim.training.client_view import Unstackable
from fedsim.training.corrupted import corrupted
from fedsim.training.initial import initial_model
from fedsim.training.kept_stacks import KeptStacks
from fedsim.training.received import Received
from fedsim.training.sequential import evaluate_client, train_client
from fedsim.training.stacked import Census, Member, train_stacked


@dataclass(frozen=True)
class TrainingSetup:
    """Builds a worker's handler; picklable, an `engine.protocols.Setup` for `FederatedData`.

    Attributes:
        method: what the clients do.
        seed: of the run.
        dtype: of the data's floating-point inputs; that of the method's model.
        stacked: train the clients of a task at once where their programs allow it (T2).
        attack: corrupts malicious clients; None: everybody is honest.
    """

    method: ClientMethod
    seed: int
    dtype: torch.dtype = torch.float32
    stacked: bool = False
    attack: Attack | None = None

    def __call__(self, data: FederatedData, place: WorkerPlace) -> "TrainingHandler":
        """A handler on the worker's device."""
        return TrainingHandler(self, data, place, Layout.of(initial_model(self.method, data)))


@dataclass
class TrainingHandler:
    """Trains and evaluates clients; holds nothing that a result depends on.

    Attributes:
        setup: method, seed and type.
        data: of all clients.
        place: the worker's number and device.
        layout: of the shared model.
    """

    setup: TrainingSetup
    data: FederatedData
    place: WorkerPlace
    layout: Layout
    _clients: dict[int, ClientInfo] = field(default_factory=dict)
    _received: tuple[Order, Order, Received] | None = None

    def __post_init__(self) -> None:
        self._stacked_examples = KeptStacks(len(self.data.clients))

    def run(self, broadcast: Order, task: Task) -> Sequence[LocalUpdate | LocalEvaluation | Failure]:
        """One result per partition of the task; a client that raises becomes a `Failure`.

        Args:
            broadcast: the order of the round.
            task: partitions, and each one's private tensors or None.
        """
        if isinstance(broadcast, TrainOrder):
            if self.setup.stacked:
                return self._stacked(broadcast, task)
            return [self._client(self._train, broadcast, *one) for one in _pairs(task)]
        return [self._client(self._evaluate, broadcast, *one) for one in _pairs(task)]

    def _stacked(self, order: TrainOrder, task: Task) -> list[LocalUpdate | LocalEvaluation | Failure]:
        """Clients with equal keys at once; those that cannot, or a stack that raised, one by one."""
        found: dict[int, LocalUpdate | LocalEvaluation | Failure] = {}
        detours = dict.fromkeys(self._corrupted(order), _CORRUPTED)
        for members in self._stacks(order, task):
            try:
                here, received = self._here(order)
                updates = train_stacked(
                    self.setup.method,
                    members,
                    here,
                    self.setup.seed,
                    received=received,
                    together=self._stacked_examples,
                )
                received.require_unchanged()
                found |= {update.partition: update for update in updates}
            except Exception as error:
                detour = _detour(error)
                detours |= {one.client.partition: detour for one in members}
        for partition, private in _pairs(task):
            if partition not in found:
                alone = self._client(self._train, order, partition, private)
                if isinstance(alone, LocalUpdate):
                    alone = replace(alone, detour=detours.get(partition, _ALONE))
                found[partition] = alone
        return [found[partition] for partition in task.items]

    def _stacks(self, order: TrainOrder, task: Task) -> list[list[Member]]:
        """Clients that may be stacked; one whose program raises is left to run alone and say so."""
        census, apart = Census(self.setup.method, order.round, self.setup.seed), self._corrupted(order)
        for partition, private in _pairs(task):
            if partition in apart:
                continue
            with suppress(Exception):
                census.add(self._info(partition), private)
        return list(census.stacks.values())

    def _client(
        self, act: Callable[..., Any], order: Order, partition: int, private: Tensors | None
    ) -> LocalUpdate | LocalEvaluation | Failure:
        try:
            here, received = self._here(order)
            received.require_unchanged()
            result: LocalUpdate | LocalEvaluation = act(self._info(partition), here, private, received)
            received.require_unchanged()
        except Exception as error:
            return Failure(
                round=order.round,
                partition=partition,
                worker=self.place.number,
                kind="exception",
                message=_one_line(error),
                traceback=traceback.format_exc(),
            )
        return result

    def _train(
        self, client: ClientInfo, order: TrainOrder, private: Tensors | None, received: Received
    ) -> LocalUpdate:
        method, attack = self.setup.method, self.setup.attack
        if attack is not None and order.corruption and client.partition in order.corruption.members:
            method, client = corrupted(attack, order.corruption, method, client, order.round)
        return train_client(method, client, order, private, self.setup.seed, received=received)

    def _evaluate(
        self, client: ClientInfo, order: EvaluateOrder, private: Tensors | None, received: Received
    ) -> LocalEvaluation:
        attack, state, poison = self.setup.attack, order.poison, None
        if attack is not None and state is not None:
            poison = partial(attack.poison, state)
        return evaluate_client(
            self.setup.method, client, order, private, self.setup.seed, received=received, poison=poison
        )

    def _corrupted(self, order: TrainOrder) -> tuple[int, ...]:
        return order.corruption.members if order.corruption and self.setup.attack else ()

    def _info(self, partition: int) -> ClientInfo:
        """The client with its data on the worker's device, moved there once."""
        if partition not in self._clients:
            data, target = self.data.clients[partition], (self.place.device, self.setup.dtype)
            moved = ClientData(data.train.to(*target), data.val.to(*target), data.test.to(*target), data.spec)
            self._clients[partition] = ClientInfo(partition, moved)
        return self._clients[partition]

    def _here(self, order: Order) -> tuple[Order, Received]:
        """The order on the worker's device, and its model unpacked, once per order."""
        if self._received is None or self._received[0] is not order:
            device = self.place.device
            moved = _moved(order, device)
            self._received = (order, moved, Received.of(moved, self.layout))
        return self._received[1:]


def _moved(order: Order, device: torch.device) -> Order:
    def there(tensors: Tensors) -> dict[str, torch.Tensor]:
        return {name: value.to(device) for name, value in tensors.items()}

    moved: dict[str, Any] = {"integers": there(order.integers), "downlink": there(order.downlink)}
    if isinstance(order, EvaluateOrder):
        moved["poison"] = None if order.poison is None else there(order.poison)
    elif order.corruption is not None:
        moved["corruption"] = replace(order.corruption, state=there(order.corruption.state))
    return replace(order, vector=order.vector.to(device), **moved)


def _pairs(task: Task) -> list[tuple[int, Tensors | None]]:
    return list(zip(task.items, task.payloads, strict=True))


_ALONE = Detour("its program has no `stack` key", failed=False)
_CORRUPTED = Detour("it is corrupted by the attack", failed=False)


def _detour(error: Exception) -> Detour:
    return Detour(
        str(error) if isinstance(error, Unstackable) else _one_line(error), not isinstance(error, Unstackable)
    )


def _one_line(error: Exception) -> str:
    first = next(iter(str(error).splitlines()), "")
    return f"{type(error).__name__}: {first}"
