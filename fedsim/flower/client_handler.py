"""Runs a Flower ClientApp in an engine's worker: one call per message, as Flower does it.

Every call gets its own message, a Context rebuilt from the state that the driver keeps for the partition,
and global random generators seeded by (seed, partition, how many messages the partition got before): not by
worker, order or time.
"""

import copy
import math
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from flwr.app import Context, Message, Metadata, RecordDict
from flwr.app.message import make_message
from flwr.app.user_config import UserConfig
from flwr.clientapp import ClientApp
from flwr.common.constant import NUM_PARTITIONS_KEY, PARTITION_ID_KEY

from fedsim.contracts import Failure
from fedsim.engine.protocols import Task, WorkerPlace
from fedsim.errors import ConfigError
from fedsim.flower.foreign.modules import AppModules
from fedsim.flower.refusal import reason_to_refuse
from fedsim.flower.wire import Broadcast, Packed, pack, unpack
from fedsim.rng import derive, seeded_globals


@dataclass(frozen=True)
class Envelope:
    """One message on its way to a client.

    Attributes:
        metadata: of the message.
        content: packed, or its place in the broadcast.
        state: of the partition's Context, packed.
        call: messages that the partition got before.
        round: for the ledger.
        expires: Unix time after which no reply counts.
    """

    metadata: Metadata
    content: Packed | int
    state: Packed
    call: int
    round: int
    expires: float


@dataclass(frozen=True)
class Answer:
    """What a client made of a message.

    Attributes:
        metadata: of the reply.
        content: packed; None where the reply carries an error.
        error: (code, reason) that the app itself replied.
        state: of the partition's Context after the call.
        kind: a fault that leaves the state valid: the reply is `refused`, or came past its `deadline`.
        reason: one line on that fault.
    """

    metadata: Metadata
    content: Packed | None
    error: tuple[int, str | None] | None
    state: Packed
    kind: Literal["refused", "deadline"] | None = None
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class ClientAppSetup:
    """Builds the handler in a worker; picklable.

    Attributes:
        reference: `module:attribute` of the ClientApp.
        directory: of an app that is not installed, or None.
        seed: of the run.
        clients: number of partitions.
        run_id: as the clients' Contexts show it.
        run_config: as the clients' Contexts show it.
    """

    reference: str
    directory: str | None
    seed: int
    clients: int
    run_id: int
    run_config: Mapping[str, Any]

    def __call__(self, data: Any, place: WorkerPlace) -> "ClientAppHandler":
        """The handler of one worker; `data` is not used.

        Raises:
            ConfigError: the reference names no ClientApp.
        """
        modules = AppModules(Path(self.directory) if self.directory else None)
        return ClientAppHandler(self, modules, place.number)


class ClientAppHandler:
    """A worker's ClientApp."""

    def __init__(self, setup: ClientAppSetup, modules: AppModules, worker: int) -> None:
        self._setup, self._modules, self._worker = setup, modules, worker
        with self._modules.active(), seeded_globals(derive(setup.seed, "client-app-import")):
            app = self._modules.load(setup.reference)
        if not isinstance(app, ClientApp):
            raise ConfigError(f"{setup.reference} should be a flwr.clientapp.ClientApp, found {type(app)}.")
        self._app = app
        self._shared: tuple[Broadcast, tuple[bytes, ...]] = (Broadcast(), ())

    def run(self, broadcast: Broadcast, task: Task) -> Sequence[Answer | Failure]:
        """One answer per item; items are partitions, payloads are envelopes."""
        pairs = zip(task.items, task.payloads, strict=True)
        return [self._answer(broadcast, partition, envelope) for partition, envelope in pairs]

    def _answer(self, broadcast: Broadcast, partition: int, envelope: Envelope) -> Answer | Failure:
        if time.time() > envelope.expires:
            return self._failure(partition, envelope, "deadline", _late(envelope, "started"))
        try:
            return self._call(broadcast, partition, envelope)
        except (Exception, SystemExit) as error:
            trace = traceback.format_exc()
            last = "".join(traceback.format_exception_only(error)).strip().splitlines()[-1]
            return self._failure(partition, envelope, "exception", last, trace)

    def _call(self, broadcast: Broadcast, partition: int, envelope: Envelope) -> Answer:
        packed = envelope.content
        content = broadcast.contents[packed] if isinstance(packed, int) else packed
        message = make_message(copy.copy(envelope.metadata), unpack(content, self._buffers(broadcast)))
        context = self._context(partition, envelope)
        seed = derive(self._setup.seed, "client-app", envelope.call, partition)
        if torch.are_deterministic_algorithms_enabled():  # CUDA workers: foreign code may have no other way
            torch.use_deterministic_algorithms(True, warn_only=True)
        with self._modules.active(), seeded_globals(seed):
            reply = self._app(message, context)
        return self._checked(reply, context, envelope)

    def _buffers(self, broadcast: Broadcast) -> tuple[bytes, ...]:
        """The shared arrays as Flower wants them, made once per call."""
        if self._shared[0] is not broadcast:
            self._shared = (broadcast, tuple(buffer.tobytes() for buffer in broadcast.buffers))
        return self._shared[1]

    def _context(self, partition: int, envelope: Envelope) -> Context:
        return Context(
            run_id=self._setup.run_id,
            node_id=envelope.metadata.dst_node_id,
            node_config={PARTITION_ID_KEY: partition, NUM_PARTITIONS_KEY: self._setup.clients},
            state=unpack(envelope.state),
            run_config=self._run_config(),
        )

    def _run_config(self) -> UserConfig:
        return dict(self._setup.run_config)

    def _checked(self, reply: Any, context: Context, envelope: Envelope) -> Answer:
        """The reply as it travels back, or an error that says what is wrong with it."""
        if not isinstance(reply, Message):
            raise TypeError(
                f"The ClientApp should return a flwr Message, but returned {type(reply).__name__}."
            )
        if reply.metadata.reply_to_message_id != envelope.metadata.message_id:
            raise ValueError(
                "The ClientApp returned no reply: make it with Message(content, reply_to=message)."
            )
        if context.run_config != self._run_config():
            raise ValueError("The ClientApp changed `context.run_config`, which Flower does not allow.")
        answer = _answer_of(reply, pack(context.state))
        if time.time() > envelope.expires:
            return _fault(answer, "deadline", _late(envelope, "finished"))
        refusal = reason_to_refuse(reply.metadata.message_type, reply.content) if reply.has_content() else ""
        return _fault(answer, "refused", refusal) if refusal else answer

    def _failure(
        self,
        partition: int,
        envelope: Envelope,
        kind: Literal["exception", "deadline"],
        message: str,
        trace: str = "",
    ) -> Failure:
        return Failure(envelope.round, partition, self._worker, kind, message, trace)


def _answer_of(reply: Message, state: Packed) -> Answer:
    if reply.has_error():
        return Answer(reply.metadata, None, (reply.error.code, reply.error.reason), state)
    content = reply.content
    if not isinstance(content, RecordDict):
        raise TypeError(f"A reply's content should be a RecordDict, found {type(content).__name__}.")
    return Answer(reply.metadata, pack(content), None, state)


def _fault(answer: Answer, kind: Literal["refused", "deadline"], reason: str) -> Answer:
    return Answer(answer.metadata, None, None, answer.state, kind, reason)


def _late(envelope: Envelope, verb: str) -> str:
    seconds = envelope.expires - envelope.metadata.created_at
    limit = f"{seconds:.1f} s" if math.isfinite(seconds) else "its limit"
    return f"The client {verb} after the message's time was up ({limit})."
