"""The process of one spawned worker: receives its set-up, then one call per round, until told to end.

A plain interpreter is started rather than a `multiprocessing` process: spawning would import the driver's
main module again, which fails in scripts without a main guard, in notebooks and on standard input.
"""

import contextlib
import faulthandler
import os
import socket
from dataclasses import dataclass
from typing import Any

from fedsim.engine.arena import Placed, view
from fedsim.engine.channel import Channel
from fedsim.engine.contract import Handler, Task, WorkerPlace
from fedsim.engine.events import Raised, Ready, Refused, Trouble, perform
from fedsim.engine.options import worker_device
from fedsim.engine.processes import end_with_parent, settle
from fedsim.engine.share import Parcel, unpack


@dataclass(frozen=True)
class Hello:
    """The first message: everything that a worker keeps.

    Attributes:
        number: the worker's.
        device: `cpu`, `cuda` or `cuda:N`.
        holdings: (setup, data).
        parent: the driver's process number.
        by_kernel: whether the kernel may end the worker with the driver's thread.
    """

    number: int
    device: str
    holdings: Placed
    parent: int
    by_kernel: bool


@dataclass(frozen=True)
class Call:
    """A worker's share of one round."""

    broadcast: Placed
    tasks: tuple[Task, ...]


def main(connection: int, crash_log: int) -> None:
    """Serve until the driver closes the connection.

    Args:
        connection: descriptor of the worker's end of the socket.
        crash_log: descriptor of a file for the stack of a fatal signal.
    """
    for file in (connection, crash_log):
        os.set_inheritable(file, False)
    faulthandler.enable(file=crash_log)
    with contextlib.suppress(EOFError, ConnectionError):  # the driver closed its end
        _live(Channel(socket.socket(fileno=connection)))


def _live(channel: Channel) -> None:
    hello: Hello = channel.receive_value()
    end_with_parent(hello.parent, hello.by_kernel)
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
