"""Pickled values, the memory of their arrays, and open files, over a Unix socket.

A frame is: the length of the head (8 bytes, with the files attached), the head, the pickle, the chunks.
Every chunk is received into memory of its own, so that keeping one array keeps no other.
"""

import os
import pickle
import socket
import struct
from collections.abc import Sequence
from typing import Any

from fedsim.engine.share import Bytes, Parcel, empty_chunk, pack, unpack

_LENGTH = struct.Struct("!Q")
_MOST_FILES = 4


class Channel:
    """One end of a connection; `receive` returns what the other end's `send` was given.

    Args:
        connection: a connected Unix stream socket; its time-out bounds each wait for the next bytes.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self.files: list[int] = []

    def fileno(self) -> int:
        """For `select` and `poll`."""
        return self._socket.fileno()

    def send(self, value: Any, files: Sequence[int] = ()) -> None:
        """Send a value and duplicates of open file descriptors.

        Raises:
            OSError: the other end is gone, or takes nothing for longer than the time-out.
            Exception: whatever pickling raises; nothing has been sent then.
        """
        parcel = pack(value)
        sizes = tuple(chunk.nbytes for chunk in parcel.chunks)
        head = pickle.dumps((len(parcel.blob), parcel.regions, sizes, parcel.residues))
        socket.send_fds(self._socket, [_LENGTH.pack(len(head))], list(files))
        self._socket.sendall(head + parcel.blob)
        for chunk in parcel.chunks:
            self._socket.sendall(chunk.data)

    def receive(self) -> Parcel:
        """The next value, still packed; files sent with it are added to `self.files`.

        Raises:
            EOFError: the other end is gone.
            OSError: the connection broke, or nothing came for longer than the time-out.
        """
        start, files, _, _ = socket.recv_fds(self._socket, _LENGTH.size, _MOST_FILES)
        self.files.extend(files)
        rest = empty_chunk(_LENGTH.size - len(start))
        self._fill(rest)
        (length,) = _LENGTH.unpack(start + rest.tobytes())
        blob_size, regions, sizes, residues = pickle.loads(self._read(length))
        blob = self._read(blob_size)
        chunks = tuple(empty_chunk(size, residue) for size, residue in zip(sizes, residues, strict=True))
        for chunk in chunks:
            self._fill(chunk)
        return Parcel(blob, regions, chunks, residues)

    def receive_value(self) -> Any:
        """The next value, unpacked."""
        return unpack(self.receive())

    def take_file(self) -> int:
        """The oldest received file that was not taken; the caller closes it."""
        return self.files.pop(0)

    def drop_files(self) -> None:
        """Close the received files that nobody took."""
        while self.files:
            os.close(self.files.pop())

    def close(self) -> None:
        """Close the socket; the other end then reads the end of the stream."""
        self._socket.close()

    def _read(self, size: int) -> bytes:
        block = empty_chunk(size)
        self._fill(block)
        return block.tobytes()

    def _fill(self, block: Bytes) -> None:
        memory = block.data
        while memory:
            count = self._socket.recv_into(memory)
            if not count:
                raise EOFError("The connection was closed in the middle of a message.")
            memory = memory[count:]
