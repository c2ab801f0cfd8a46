"""The round loop's clients behind any Flower grid: ours, Flower's simulation, or SuperNodes.

Each node is asked once which partition it holds; from then on partitions, never node ids, give the order.
The messages of a round share their tensors and differ in one small record.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, Protocol, TypeVar, runtime_checkable

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, RecordDict
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid

from fedsim.contracts import Failure, LocalEvaluation, LocalUpdate
from fedsim.engine.protocols import Incident
from fedsim.errors import ConfigError, FedsimError
from fedsim.federation import EvaluateOrder, Order, TrainOrder
from fedsim.flower import records
from fedsim.flower.client_side import PARTITION_HINT
from fedsim.flower.exchange import exchange
from fedsim.flower.identity import ensure_identity
from fedsim.flower.overhead import overhead
from fedsim.flower.private_places import OnNodes, PrivatePlace

Result = TypeVar("Result", LocalUpdate, LocalEvaluation)
Kind = Literal["exception", "died", "deadline", "refused"]

_LOST = {ErrorCode.UNKNOWN, ErrorCode.NODE_UNAVAILABLE, ErrorCode.CLIENT_APP_CRASHED}
_LATE = {ErrorCode.MESSAGE_UNAVAILABLE, ErrorCode.REPLY_MESSAGE_UNAVAILABLE}
_POLL = 0.5  # seconds between two looks for SuperNodes


@runtime_checkable
class Accountable(Protocol):
    """A grid over our own engine."""

    @property
    def device(self) -> str:
        """Where its workers compute."""
        ...

    def take_packing(self) -> float:
        """Seconds since the last call that it spent packing messages and unpacking replies."""
        ...

    def take_incidents(self) -> Sequence[Incident]:
        """What its workers lost since the last call, and what was done about it."""
        ...


class GridFederation:
    """`fedsim.federation.Federation` over a Flower grid."""

    def __init__(
        self,
        grid: Grid,
        clients: int,
        seed: int,
        *,
        patience: float = 120.0,
        deadline: float | None = None,
        private: PrivatePlace | None = None,
        release: Callable[[], None] | None = None,
    ) -> None:
        """Find the clients.

        Args:
            grid: messages go through it; it stays open on `close`.
            clients: partitions that the experiment declares.
            seed: of the run; clients need it for their data and their own draws.
            patience: seconds that all clients may take to appear and to say who they are.
            deadline: seconds that a round may take; None: no limit.
            private: where clients' private tensors lie; None: on their nodes.
            release: called by `close`.

        Raises:
            ConfigError: the grid has another number of nodes, or nodes without a partition of their own.
        """
        ensure_identity()
        self._grid, self._clients, self._seed = grid, clients, seed
        self._patience, self._deadline, self._release = patience, deadline, release
        self._nodes: dict[int, int] = {}  # partition -> node id
        self._private = private or OnNodes()
        self._overhead = {"serialise": 0.0, "wait": 0.0}  # seconds
        self._incidents: list[Incident] = []
        self._find_all()

    def train(self, order: TrainOrder, partitions: Sequence[int]) -> list[LocalUpdate | Failure]:
        """One result per partition, in the order given; private tensors wait on their nodes."""
        self._private.commit(())
        return self._ask(order, partitions, MessageType.TRAIN, self._update)

    def commit(self, partitions: Sequence[int]) -> None:
        """Let these clients keep the private tensors of the last `train`; the others go back."""
        self._private.commit(partitions)

    def evaluate(self, order: EvaluateOrder, partitions: Sequence[int]) -> list[LocalEvaluation | Failure]:
        """Each client's own model on its own splits."""
        results = self._ask(order, partitions, MessageType.EVALUATE, _evaluation)
        self._private.rest(partitions)
        return results

    @property
    def device(self) -> str | None:
        """Where clients compute; None: each SuperNode decides that for itself."""
        return self._grid.device if isinstance(self._grid, Accountable) else None

    def take_overhead(self) -> dict[str, float]:
        """Seconds since the last call in which not even the busiest process computed; see `overhead`."""
        taken, self._overhead = self._overhead, {"serialise": 0.0, "wait": 0.0}
        return taken

    def take_incidents(self) -> list[Incident]:
        """What was lost since the last call and made good: workers of our grid, or SuperNodes."""
        taken, self._incidents = self._incidents, []
        return [*taken, *(self._grid.take_incidents() if isinstance(self._grid, Accountable) else ())]

    def close(self) -> None:
        """Release what the maker of the grid asked to have released; safe to call twice."""
        release, self._release = self._release, None
        if release is not None:
            release()

    def _ask(
        self,
        order: Order,
        partitions: Sequence[int],
        kind: str,
        read: Callable[[RecordDict, int, int], Result],
    ) -> list[Result | Failure]:
        begun = time.perf_counter()
        absence = self._find_returned(partitions, order.round)
        shared = records.order_records(order)
        reached = [partition for partition in partitions if partition in self._nodes]
        messages = [self._message(order, shared, partition, kind) for partition in reached]
        sent = time.perf_counter()
        replies = dict(zip(reached, exchange(self._grid, messages, self._deadline), strict=True))
        came = time.perf_counter()
        results = [
            _read(replies[partition], order.round, partition, read)
            if partition in replies
            else _failure(
                order.round, partition, "died", f"Its SuperNode has left the federation. {absence}".strip()
            )
            for partition in partitions
        ]
        ended = time.perf_counter()
        self._account(ended - begun, sent - begun + ended - came, replies.values())
        return results

    def _account(self, total: float, packing: float, replies: Iterable[Message | None]) -> None:
        if isinstance(self._grid, Accountable):
            packing += self._grid.take_packing()
        contents = [reply.content for reply in replies if reply is not None and reply.has_content()]
        for name, seconds in overhead(total, packing, contents).items():
            self._overhead[name] += seconds

    def _message(self, order: Order, shared: Mapping[str, ArrayRecord], partition: int, kind: str) -> Message:
        own: dict[str, Any] = {
            "round": order.round,
            "seed": self._seed,
            "accepted": self._private.mark(partition, order.round),
        }
        if isinstance(order, EvaluateOrder):
            own["splits"] = list(order.splits)
        content = RecordDict({**shared, "order": ConfigRecord(own)})
        return Message(content, self._nodes[partition], kind, ttl=self._deadline, group_id=str(order.round))

    def _update(self, content: RecordDict, round: int, partition: int) -> LocalUpdate:
        update = records.update_of(content, partition)
        keeps = content.config_records["reply"]["keeps_private"]
        self._private.returned(partition, round, bool(keeps))
        return update

    def _find_all(self) -> None:
        """Wait until every partition has its node."""
        end = time.monotonic() + self._patience
        asked: set[int] = set()
        while True:
            fresh = [node for node in self._grid.get_node_ids() if node not in asked]
            asked.update(fresh)
            self._learn(fresh, max(end - time.monotonic(), _POLL))
            if len(self._nodes) == self._clients:
                return
            if time.monotonic() >= end:
                raise ConfigError(
                    f"Only {len(self._nodes)} of {self._clients} clients joined within "
                    f"{self._patience:.0f} s: {self._advice()}"
                )
            time.sleep(_POLL)

    def _find_returned(self, partitions: Sequence[int], round: int) -> str:
        """Forget nodes that left, and learn where their partitions came back; else why they did not."""
        alive = set(self._grid.get_node_ids())
        if all(self._nodes.get(partition) in alive for partition in partitions):
            return ""
        gone = {partition for partition, node in self._nodes.items() if node not in alive}
        self._nodes = {partition: node for partition, node in self._nodes.items() if node in alive}
        try:
            self._learn(sorted(alive - set(self._nodes.values())), self._patience)
        except ConfigError as error:  # a stranger among the nodes is no reason to end a running experiment
            return str(error)
        if back := tuple(sorted(gone & set(self._nodes))):
            line = "Its SuperNode left, and another one holds its partition now."
            self._incidents.append(Incident(round, None, "died", back, "replaced", line))
        return ""

    def _learn(self, nodes: Sequence[int], timeout: float) -> None:
        """Ask nodes for their partitions."""
        messages = [Message(RecordDict(), node, MessageType.QUERY) for node in nodes]
        for node, reply in zip(nodes, exchange(self._grid, messages, timeout), strict=True):
            place = _place(reply)
            partition, declared = place["partition"], place.get("partitions", self._clients)
            if declared != self._clients or partition >= self._clients:
                raise ConfigError(
                    f"The experiment has {self._clients} clients, but this federation has "
                    f"{max(declared, partition + 1)} SuperNodes: {self._advice()}"
                )
            if self._nodes.setdefault(partition, node) != node:
                raise ConfigError(
                    f"Two SuperNodes hold partition {partition}: "
                    f"{PARTITION_HINT.format(clients=self._clients)}."
                )

    def _advice(self) -> str:
        supernodes = f'flwr run . --stream --federation-config "num-supernodes={self._clients}"'
        return (
            f"use {supernodes} (each takes 2 CPUs unless client-resources-num-cpus says otherwise), or in a "
            f"deployment {PARTITION_HINT.format(clients=self._clients)}."
        )


def _place(reply: Message | None) -> dict[str, int]:
    """A node's answer to who it is."""
    if reply is None:
        raise ConfigError("A SuperNode did not say which partition it holds in time; its log may say why.")
    if reply.has_error():
        raise ConfigError(f"A SuperNode cannot run fedsim's ClientApp: {_one_line(reply.error.reason)}")
    failure = records.failure_of(reply.content, round=0, partition=-1)
    if failure is not None:
        raise ConfigError(failure.message)
    if "place" not in reply.content.config_records:
        raise ConfigError("A SuperNode runs another ClientApp than fedsim's: its reply names no partition.")
    place = reply.content.config_records["place"]
    return {key: value for key, value in place.items() if isinstance(value, int)}


def _read(
    reply: Message | None,
    round: int,
    partition: int,
    read: Callable[[RecordDict, int, int], Result],
) -> Result | Failure:
    """A client's result, or the ledger entry that takes its place."""
    if reply is None:
        return _failure(round, partition, "deadline", "No reply before the round's deadline.")
    if reply.has_error():
        code, reason = reply.error.code, _one_line(reply.error.reason)
        kind: Kind = "died" if code in _LOST else "deadline" if code in _LATE else "exception"
        return _failure(round, partition, kind, reason)
    try:
        failure = records.failure_of(reply.content, round, partition)
        return failure if failure is not None else read(reply.content, round, partition)
    except (KeyError, TypeError, ValueError, FedsimError) as error:
        return _failure(round, partition, "refused", f"The reply cannot be read: {_one_line(str(error))}")


def _evaluation(content: RecordDict, round: int, partition: int) -> LocalEvaluation:
    return records.evaluation_of(content, partition)


def _failure(round: int, partition: int, kind: Kind, message: str) -> Failure:
    return Failure(round=round, partition=partition, worker=None, kind=kind, message=message)


def _one_line(text: str | None) -> str:
    return " ".join((text or "no reason given").split())
