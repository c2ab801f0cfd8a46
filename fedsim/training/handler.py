"""What an engine's worker does with an order: train or evaluate its clients, one after the other."""

import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
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
from fedsim.engine.contract import Task, WorkerPlace
from fedsim.federation import Order, TrainOrder
from fedsim.params import Layout
from fedsim.training.client_view import Unstackable
from fedsim.training.initial import initial_model
from fedsim.training.kept_stacks import KeptStacks
from fedsim.training.received import Received
from fedsim.training.sequential import evaluate_client, train_client
from fedsim.training.stacked import Census, Member, train_stacked


@dataclass(frozen=True)
class TrainingSetup:
    """Builds a worker's handler; picklable, an `engine.contract.Setup` for `FederatedData`.

    Attributes:
        method: what the clients do.
        seed: of the run.
        dtype: of the data's floating-point inputs; that of the method's model.
        stacked: train the clients of a task at once where their programs allow it (T2).
    """

    method: ClientMethod
    seed: int
    dtype: torch.dtype = torch.float32
    stacked: bool = False

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
            if self.setup.stacked and len(task.items) > 1:
                return self._stacked(broadcast, task)
            return [self._client(train_client, broadcast, *one) for one in _pairs(task)]
        return [self._client(evaluate_client, broadcast, *one) for one in _pairs(task)]

    def _stacked(self, order: TrainOrder, task: Task) -> list[LocalUpdate | LocalEvaluation | Failure]:
        """Clients with equal keys at once; those that cannot, or a stack that raised, one by one."""
        found: dict[int, LocalUpdate | LocalEvaluation | Failure] = {}
        detours: dict[int, Detour] = {}
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
                found |= {update.partition: update for update in updates}
            except Exception as error:
                detour = _detour(error)
                detours |= {one.client.partition: detour for one in members}
        for partition, private in _pairs(task):
            if partition not in found:
                alone = self._client(train_client, order, partition, private)
                if isinstance(alone, LocalUpdate):
                    alone = replace(alone, detour=detours.get(partition, _ALONE))
                found[partition] = alone
        return [found[partition] for partition in task.items]

    def _stacks(self, order: TrainOrder, task: Task) -> list[list[Member]]:
        """Clients that may be stacked; one whose program raises is left to run alone and say so."""
        census = Census(self.setup.method, order.round, self.setup.seed)
        for partition, private in _pairs(task):
            with suppress(Exception):
                census.add(self._info(partition), private)
        return list(census.stacks.values())

    def _client(
        self, act: Callable[..., Any], order: Order, partition: int, private: Tensors | None
    ) -> LocalUpdate | LocalEvaluation | Failure:
        try:
            client, (here, received) = self._info(partition), self._here(order)
            result: LocalUpdate | LocalEvaluation = act(
                self.setup.method, client, here, private, self.setup.seed, received=received
            )
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
            moved = replace(
                order,
                vector=order.vector.to(device),
                integers={name: value.to(device) for name, value in order.integers.items()},
                downlink={name: value.to(device) for name, value in order.downlink.items()},
            )
            self._received = (order, moved, Received.of(moved, self.layout))
        return self._received[1:]


def _pairs(task: Task) -> list[tuple[int, Tensors | None]]:
    return list(zip(task.items, task.payloads, strict=True))


_ALONE = Detour("its program has no `stack` key", failed=False)


def _detour(error: Exception) -> Detour:
    return Detour(
        str(error) if isinstance(error, Unstackable) else _one_line(error), not isinstance(error, Unstackable)
    )


def _one_line(error: Exception) -> str:
    first = next(iter(str(error).splitlines()), "")
    return f"{type(error).__name__}: {first}"
