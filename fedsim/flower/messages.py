"""Flower messages at the border of a grid: ids, checks, and replies that Flower itself would make."""

import copy
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from uuid import UUID

from flwr.app import Error, Message, Metadata, RecordDict
from flwr.app.message import make_message
from flwr.common.constant import SUPERLINK_NODE_ID, ErrorCode

from fedsim.rng import derive


class MessageIds:
    """Ids that look like Flower's but depend on the seed and their number alone."""

    def __init__(self, seed: int) -> None:
        self._seed, self._number = seed, 0

    def next(self) -> str:
        """The next id."""
        self._number += 1
        return str(UUID(int=derive(self._seed, "message", self._number) << 64 | self._number))


def round_named(message: Message) -> int | None:
    """The round that a message names: `server-round` in a ConfigRecord, or a number as its group id."""
    for config in message.content.config_records.values():
        value = config.get("server-round")
        if isinstance(value, int):
            return value
    group = message.metadata.group_id
    return int(group) if group.isdecimal() else None


def check_instruction(metadata: Metadata) -> None:
    """Refuse what no Flower grid sends.

    Raises:
        ValueError: naming the metadata at fault.
    """
    if metadata.reply_to_message_id or metadata.src_node_id != SUPERLINK_NODE_ID:
        raise ValueError(f"A ServerApp sends instructions, not replies of clients: {metadata}")
    if not metadata.ttl > 0:
        raise ValueError(f"A message needs a time to live above 0 seconds, found {metadata.ttl}: {metadata}")


def instruction(message: Message, message_id: str) -> Message:
    """Give a message its id; the result has metadata of its own, as the object may be sent again."""
    message.metadata.__dict__["_message_id"] = message_id
    return make_message(copy.copy(message.metadata), message.content)


def waves(messages: Sequence[Message]) -> Iterator[list[int]]:
    """Places of messages in groups that hold each node once, so that a node sees its messages in order."""
    seen: Counter[int] = Counter()
    groups: dict[int, list[int]] = {}
    for place, message in enumerate(messages):
        node = message.metadata.dst_node_id
        groups.setdefault(seen[node], []).append(place)
        seen[node] += 1
    yield from groups.values()


def delivered(
    message_id: str, metadata: Metadata, *, content: RecordDict | None = None, error: Error | None = None
) -> Message:
    """A reply as the ServerApp gets it."""
    metadata = copy.copy(metadata)
    metadata.__dict__["_message_id"] = message_id
    metadata.delivered_at = datetime.now(tz=UTC).isoformat()
    return make_message(metadata, content, error)


def unavailable(message_id: str, run: int) -> Message:
    """Flower's reply to an id that is unknown, or was pulled before."""
    metadata = Metadata(
        run_id=run,
        message_id="",
        src_node_id=SUPERLINK_NODE_ID,
        dst_node_id=SUPERLINK_NODE_ID,
        reply_to_message_id=message_id,
        group_id="",
        created_at=time.time(),
        ttl=0,
        message_type="query",
    )
    reason = "Message unavailable: the id is unknown, or its reply was pulled before."
    return make_message(metadata, error=Error(ErrorCode.MESSAGE_UNAVAILABLE, reason))


def is_late(reply: Message) -> bool:
    """Whether this stands for a reply whose time was up."""
    return reply.has_error() and reply.error.code == ErrorCode.REPLY_MESSAGE_UNAVAILABLE
