"""A parcel placed once per machine: in an anonymous file that every worker maps.

The file has no name, so nothing is left behind however a process ends, and it does not count against a
container's limit on /dev/shm. Workers map it copy-on-write: a client that writes to its data changes
neither the data of other workers nor that of the driver.
"""

import mmap
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedsim.engine.share import ALIGNMENT, Parcel

SMALLEST_FILE = 1 << 16  # bytes; below, a copy through the socket is cheaper than a mapping


@dataclass(frozen=True)
class Placed:
    """A parcel, or, where its bytes are in a file, the rest of it.

    Attributes:
        parcel: the parcel; without pickle and chunks if they are in the file.
        spans: (first byte, bytes) of the pickle and of each chunk in the file; empty: they are not.
    """

    parcel: Parcel
    spans: tuple[tuple[int, int], ...] = ()


@dataclass
class Arena:
    """The driver's hold on a placed parcel.

    Attributes:
        placed: what is sent to a worker.
        files: the descriptor to send along; empty where the parcel is small enough to be sent itself.
    """

    placed: Placed
    files: list[int]

    def close(self) -> None:
        """Let go; workers that have mapped the file keep their mapping."""
        while self.files:
            os.close(self.files.pop())


def place(parcel: Parcel) -> Arena:
    """Copy the parcel into an anonymous file, unless it is small.

    Raises:
        OSError: the machine has no room for it.
    """
    if parcel.nbytes + len(parcel.blob) < SMALLEST_FILE:
        return Arena(Placed(parcel), [])
    pieces = (np.frombuffer(parcel.blob, dtype=np.uint8), *parcel.chunks)
    spans, total = layout([piece.nbytes for piece in pieces], (0, *parcel.residues))
    file = _anonymous_file(total)
    try:
        with mmap.mmap(file, total) as memory:
            for piece, (first, size) in zip(pieces, spans, strict=True):
                memory[first : first + size] = piece.data
    except BaseException:
        os.close(file)
        raise
    return Arena(Placed(Parcel(b"", parcel.regions, (), parcel.residues), spans), [file])


def view(placed: Placed, file: int) -> Parcel:
    """The parcel again, its chunks a copy-on-write mapping of the file; the descriptor may be closed."""
    memory = np.frombuffer(mmap.mmap(file, os.fstat(file).st_size, access=mmap.ACCESS_COPY), dtype=np.uint8)
    blob, *chunks = (memory[first : first + size] for first, size in placed.spans)
    return Parcel(blob.tobytes(), placed.parcel.regions, tuple(chunks), placed.parcel.residues)


def layout(sizes: Sequence[int], residues: Sequence[int]) -> tuple[tuple[tuple[int, int], ...], int]:
    """(First byte, bytes) of each piece in one block that keeps their residues; the block's size."""
    spans, end = [], 0
    for size, residue in zip(sizes, residues, strict=True):
        first = end + (residue - end) % ALIGNMENT
        spans.append((first, size))
        end = first + size
    return tuple(spans), end


def _anonymous_file(size: int) -> int:
    if hasattr(os, "memfd_create"):
        file = os.memfd_create("fedsim")
    else:
        handle, path = tempfile.mkstemp(prefix="fedsim-")
        os.unlink(path)
        file = handle
    try:
        os.posix_fallocate(file, 0, size) if hasattr(os, "posix_fallocate") else os.ftruncate(file, size)
    except BaseException:
        os.close(file)
        raise
    return file
