"""A Flower grid whose nodes are partitions, computed by an engine's workers.

Sending is a function call: `push_messages` and `send_and_receive` hand all their messages to the engine in
one call and have every reply when it returns. There is no state store, no polling, and no thread. Replies of
`send_and_receive` are in partition order, then in the order of the messages; node ids depend on the seed and
the partition alone.

What a client cannot answer becomes a reply with an error, as in Flower, and an entry of the ledger: an
exception in the ClientApp, a process that ended, a reply that `refusal` does not let through. A message
whose `timeout` passed is missing from the replies, as in Flower.
"""

import copy
import logging
import math
import threading
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from flwr.app import DEFAULT_TTL, Error, Message, RecordDict
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid
from flwr.supercore.run import Run

from fedsim.contracts import Failure
from fedsim.engine.protocols import Engine, Incident, Task
from fedsim.flower.client_handler import Answer, Envelope
from fedsim.flower.identity import ensure_identity
from fedsim.flower.integer_arrays import IntegerArrays
from fedsim.flower.ledger import Ledger
from fedsim.flower.messages import (
    MessageIds,
    check_instruction,
    delivered,
    instruction,
    is_late,
    round_named,
    unavailable,
    waves,
)
from fedsim.flower.nodes import node_ids
from fedsim.flower.wire import NOTHING, Packed, pack, ship, unpack
from fedsim.rng import derive, seeded_globals

_log = logging.getLogger("fedsim")
_PATIENCE = 20  # questions for node ids in a row, nothing sent between them, before a warning
_CODES: Mapping[str, int] = {
    "exception": ErrorCode.CLIENT_APP_RAISED_EXCEPTION,
    "refused": ErrorCode.CLIENT_APP_RAISED_EXCEPTION,
    "died": ErrorCode.CLIENT_APP_CRASHED,
    "deadline": ErrorCode.REPLY_MESSAGE_UNAVAILABLE,
}


class EngineGrid(Grid):
    """`flwr.serverapp.Grid` over `fedsim.engine`.

    Attributes:
        ledger: what was sent and what failed.
        integers: which arrays were restored to integers.
        rule: whose arrays are being sent, for the words of a warning.
    """

    def __init__(
        self, engine: Engine, *, clients: int, seed: int, run: Run | None = None, chunk: int = 1
    ) -> None:
        """Open a grid.

        Args:
            engine: its workers were built by `ClientAppSetup` with the same seed and number of clients; the
                grid does not close it.
            clients: number of partitions, each of which is a node from the start.
            seed: of the run.
            run: as the ServerApp sees it; None: an empty one.
            chunk: messages per task of the engine; a task is what is lost and retried as a whole.
        """
        ensure_identity()
        self._engine, self._seed, self._chunk = engine, seed, chunk
        self._packing = 0.0  # seconds
        self._run = run or Run.create_empty(run_id=run_id(seed))
        self._nodes = node_ids(seed, clients)
        self._partitions = {node: partition for partition, node in enumerate(self._nodes)}
        self._states: dict[int, Packed] = {}
        self._calls: Counter[int] = Counter()
        self._replies: dict[str, Message] = {}
        self._exchanges = self._asked = 0
        self._ids = MessageIds(seed)
        self._lock = threading.RLock()
        self.ledger, self.integers, self.rule = Ledger(), IntegerArrays(), "The ServerApp"

    def set_run(self, run: Run) -> None:
        """The run that the ServerApp sees."""
        self._run = run

    @property
    def run(self) -> Run:
        """A copy of the run's information."""
        return copy.copy(self._run)

    @property
    def device(self) -> str:
        """Where the workers compute."""
        return self._engine.device

    def take_packing(self) -> float:
        """Seconds since the last call that were spent packing messages and unpacking replies."""
        taken, self._packing = self._packing, 0.0
        return taken + self._engine.take_packing()

    def take_incidents(self) -> Sequence[Incident]:
        """What the workers lost since the last call, and what was done about it."""
        return self._engine.take_incidents()

    def state_of(self, partition: int) -> RecordDict:
        """A copy of what the context of this partition's node holds."""
        return unpack(self._states.get(partition, NOTHING))

    def set_state(self, partition: int, state: RecordDict) -> None:
        """Replace what the context of this partition's node holds."""
        self._states[partition] = pack(state)

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        """Flower's older way to `Message(content, dst_node_id, message_type, ...)`."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> list[int]:
        """All nodes, in partition order; they exist from the start and never leave."""
        self._asked += 1
        if self._asked == _PATIENCE:
            _log.warning(
                "The ServerApp has asked for nodes %d times and sent nothing: all %d clients are here "
                "already, so waiting for more will not end. Give more clients if the app needs them.",
                _PATIENCE,
                len(self._nodes),
            )
        return list(self._nodes)

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Compute the replies at once and keep them; returns the ids to pull them by.

        A message to an unknown node is logged and gets no id.

        Raises:
            ValueError: a message is a reply, was sent by a client, or has no time to live.
        """
        with self._lock:
            accepted = self._accept(messages)
            replies = self._exchange(accepted, math.inf)
            self._replies.update(zip((m.metadata.message_id for m in accepted), replies, strict=True))
            return [message.metadata.message_id for message in accepted]

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Each id's reply, in the order of the ids, once; an unknown or pulled id gives an error reply."""
        with self._lock:
            wanted = [message_id for message_id in dict.fromkeys(message_ids) if message_id]
            return [self._pulled(message_id) for message_id in wanted]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        """The replies, in partition order, then in the order of the messages.

        Args:
            messages: to any nodes, of any types, several to one node if need be.
            timeout: seconds after which a reply no longer counts and is left out; None: no limit but the
                messages' own time to live and the engine's deadline.
        """
        with self._lock:
            accepted = self._accept(messages)
            end = math.inf if timeout is None else time.time() + timeout
            replies = self._exchange(accepted, end)
        order = sorted(range(len(accepted)), key=lambda i: self._partitions[accepted[i].metadata.dst_node_id])
        late = time.time() > end
        return [replies[i] for i in order if not (late and is_late(replies[i]))]

    def _pulled(self, message_id: str) -> Message:
        if message_id in self._replies:
            return self._replies.pop(message_id)
        return unavailable(message_id, self._run.run_id)

    def _accept(self, messages: Iterable[Message]) -> list[Message]:
        """Give each message an id; those to unknown nodes are left out."""
        accepted = []
        for message in messages:
            check_instruction(message.metadata)
            if message.metadata.dst_node_id not in self._partitions:
                line = f"There is no node {message.metadata.dst_node_id}: the message to it is lost."
                _log.error(line)
                self.ledger.note(line)
                continue
            accepted.append(instruction(message, self._ids.next()))
        self._asked = 0
        return accepted

    def _exchange(self, messages: Sequence[Message], end: float) -> list[Message]:
        """One reply per message, in their order."""
        replies: dict[int, Message] = {}
        for wave in waves(messages):
            self._exchanges += 1
            replies.update(self._one_call({i: messages[i] for i in wave}, end))
        return [replies[i] for i in range(len(messages))]

    def _one_call(self, messages: Mapping[int, Message], end: float) -> dict[int, Message]:
        """Send messages to different nodes; the keys come back with the replies."""
        begun = time.perf_counter()
        contents = self.restored([message.content for message in messages.values()])
        broadcast, packed = ship(contents)
        places = {self._partitions[message.metadata.dst_node_id]: i for i, message in messages.items()}
        envelopes = {
            partition: self._envelope(messages[i], parcel, partition, end)
            for (partition, i), parcel in zip(places.items(), packed, strict=True)
        }
        order = sorted(envelopes)
        groups = [tuple(order[start : start + self._chunk]) for start in range(0, len(order), self._chunk)]
        tasks = [
            Task(group, tuple(envelopes[partition] for partition in group), len(group)) for group in groups
        ]
        label = min(envelope.round for envelope in envelopes.values())
        # A backend may draw from the global generators (Ray does); the ServerApp's draws are its own
        sent = time.perf_counter()
        with seeded_globals(derive(self._seed, "engine")):
            results = self._engine.run(broadcast, tasks, label)
        came = time.perf_counter()
        replies = {}
        for partition in order:  # so is the ledger
            place = places[partition]
            reply = self._reply(messages[place], envelopes[partition], partition, results[partition])
            replies[place] = reply
        self._packing += sent - begun + time.perf_counter() - came
        return replies

    def _envelope(self, message: Message, content: Packed | int, partition: int, end: float) -> Envelope:
        named, metadata = round_named(message), message.metadata
        label = self._exchanges if named is None else named
        call = self._calls[partition]
        self._calls[partition] += 1
        self.ledger.sent[label, metadata.message_type] += 1
        state = self._states.get(partition, NOTHING)
        # Flower gives a message 12 hours unless the app asks otherwise; nobody asked, so it is no limit
        asked = metadata.ttl != DEFAULT_TTL
        expires = min(end, metadata.created_at + metadata.ttl if asked else math.inf)
        return Envelope(copy.copy(metadata), content, state, call, label, expires)

    def _reply(
        self, message: Message, envelope: Envelope, partition: int, result: Answer | Failure
    ) -> Message:
        """The engine's result as a message; whatever went wrong goes into the ledger."""
        if isinstance(result, Failure):
            return self._failed(message, envelope, partition, result)
        self._states[partition] = result.state
        if result.kind is not None:
            failure = Failure(envelope.round, partition, None, result.kind, result.reason)
            return self._failed(message, envelope, partition, failure)
        if result.error is not None:
            reason = result.error[1] or f"error {result.error[0]}"
            failure = Failure(envelope.round, partition, None, "exception", f"Client {partition}: {reason}")
            self._record(message, failure)
            return delivered(self._ids.next(), result.metadata, error=Error(*result.error))
        reply = delivered(self._ids.next(), result.metadata, content=unpack(result.content or NOTHING))
        self.integers.see_reply(reply.content)
        return reply

    def _failed(self, message: Message, envelope: Envelope, partition: int, failure: Failure) -> Message:
        line = failure.message.splitlines()[0] if failure.message else failure.kind
        text = f"Client {partition}: {line}"
        self._record(message, replace(failure, round=envelope.round, partition=partition, message=text))
        reply = Message(Error(_CODES[failure.kind], text), reply_to=message)
        return delivered(self._ids.next(), reply.metadata, error=reply.error)

    def _record(self, message: Message, failure: Failure) -> None:
        self.ledger.record(message.metadata.message_type, failure)
        _log.debug("%s in round %d: %s\n%s", failure.kind, failure.round, failure.message, failure.traceback)

    def restored(self, contents: Sequence[RecordDict]) -> list[RecordDict]:
        """The contents with drifted integer arrays restored; equal objects stay equal objects."""
        distinct = {id(content): content for content in contents}
        before = len(self.integers.restored)
        restored = {key: self.integers.restore(content) for key, content in distinct.items()}
        names = list(self.integers.restored.items())[before:]
        if names:
            line = (
                f"{self.rule} turned integer arrays into floats; they are rounded back to their types: "
                + ", ".join(f"{name} ({dtype})" for name, dtype in names)
            )
            self.ledger.note(line)
            _log.warning(line)
        return [restored[id(content)] for content in contents]


def run_id(seed: int) -> int:
    """A run's id as its apps see it: positive, 63 bits, from the seed."""
    return derive(seed, "run") | 1
