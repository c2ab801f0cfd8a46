"""Messages out, replies back in the order of the messages, with a deadline.

Flower's own `send_and_receive` pauses three seconds between two looks for replies and returns them in the
order of their arrival; a message that was too large to send is only logged.
"""

import time
from collections.abc import Sequence

from flwr.app import Message
from flwr.serverapp import Grid

from fedsim.errors import RoundError

FIRST_PAUSE, LONGEST_PAUSE = 0.01, 0.5  # seconds between two looks for replies


def exchange(grid: Grid, messages: Sequence[Message], timeout: float | None) -> list[Message | None]:
    """One reply per message, in their order; None where none came in time.

    Args:
        grid: any Flower grid.
        messages: to different nodes.
        timeout: seconds to wait for the last reply; None: no limit.

    Raises:
        RoundError: the grid refused some of the messages.
    """
    if not messages:
        return []
    identifiers = list(grid.push_messages(messages))
    sent = [identifier for identifier in identifiers if identifier]
    if len(sent) != len(messages):
        raise RoundError(
            f"The Flower grid took {len(sent)} of {len(messages)} messages: they are too large for the "
            "SuperLink, or their nodes are gone. Its log says which."
        )
    waiting = {identifier: place for place, identifier in enumerate(sent)}
    replies: list[Message | None] = [None] * len(messages)
    end = None if timeout is None else time.monotonic() + timeout
    pause = FIRST_PAUSE
    while waiting:
        for reply in grid.pull_messages(list(waiting)):
            place = waiting.pop(reply.metadata.reply_to_message_id, None)
            if place is not None:
                replies[place] = reply
        if not waiting or (end is not None and time.monotonic() >= end):
            break
        time.sleep(pause)
        pause = min(pause * 1.5, LONGEST_PAUSE)
    return replies
