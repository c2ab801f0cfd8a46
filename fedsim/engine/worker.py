"""One spawned worker: receives its set-up, then one call per round, until the driver hangs up.

It does not come from `multiprocessing`, whose children import the driver's main module again: that fails in
scripts without a main guard, in notebooks and on standard input.
"""

import contextlib
import faulthandler
import os
import socket
from dataclasses import dataclass
from typing import Any

from fedsim.engine.arena import Placed, view
from fedsim.engine.channel import Channel
from fedsim.engine.events import Raised, Ready, Refused, Trouble, perform
from fedsim.engine.options import worker_device
from fedsim.engine.processes import end_with_parent, settle
from fedsim.engine.protocols import Handler, Task, WorkerPlace
from fedsim.engine.share import Parcel, unpack


@dataclass(frozen=True)
class Hello:
    """The first message: everything that a worker keeps.

    Attributes:
        number: the worker's.
        device: `cpu`, `cuda` or `cuda:N`.
        holdings: (setup, data).
    """

    number: int
    device: str
    holdings: Placed


@dataclass(frozen=True)
class Call:
    """A worker's share of one round."""

    broadcast: Placed
    tasks: tuple[Task, ...]


def main(connection: int, crash_log: int, parent: int) -> None:
    """Serve until the driver closes the connection.

    Args:
        connection: descriptor of the worker's end of the socket.
        crash_log: descriptor of a file for the stack of a fatal signal.
        parent: the process number of the nursery, with which the worker ends.
    """
    end_with_parent(parent)
    for file in (connection, crash_log):
        os.set_inheritable(file, False)
    faulthandler.enable(file=crash_log)
    with contextlib.suppress(EOFError, ConnectionError):  # the driver closed its end
        _live(Channel(socket.socket(fileno=connection)))


def _live(channel: Channel) -> None:
    hello: Hello = channel.receive_value()
    try:
        handler = _set_up(hello, channel)
    except BaseException as error:
        channel.send(Refused(Trouble.of(error)))
        return
    channel.send(Ready())
    while True:
        _serve(channel.receive(), handler, channel)


def _set_up(hello: Hello, channel: Channel) -> Handler:
    device = worker_device(hello.device, hello.number)
    settle(device)
    setup, data = _open(hello.holdings, channel)
    handler: Handler = setup(data, WorkerPlace(hello.number, device))
    return handler


def _serve(message: Parcel, handler: Handler, channel: Channel) -> None:
    try:
        call: Call = unpack(message)
        broadcast = _open(call.broadcast, channel)
    except Exception as error:
        channel.drop_files()
        channel.send(Raised(Trouble.of(error, "The worker cannot read its call: ")))
        return
    for event in perform(handler, broadcast, call.tasks):
        channel.send(event)


def _open(placed: Placed, channel: Channel) -> Any:
    if not placed.spans:
        return unpack(placed.parcel)
    file = channel.take_file()
    try:
        return unpack(view(placed, file))
    finally:
        os.close(file)
