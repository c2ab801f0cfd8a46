"""The worker of the Ray backend: what a persistent actor runs. Imports nothing of Ray."""

import ctypes
import mmap
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

from fedsim.engine.events import Event, Raised, Ready, Refused, Trouble, perform
from fedsim.engine.processes import settle
from fedsim.engine.protocols import Handler, WorkerPlace
from fedsim.engine.share import Bytes, Parcel, address_of, empty_chunk, unpack, writable


class RayActor:
    """Holds one handler; one call per round."""

    def __init__(self, number: int, device: str, holdings: Parcel) -> None:
        """Keep what `ready` sets up; nothing raises here, since Ray would hide the cause.

        Args:
            number: the worker's.
            device: as torch names it, among the cards that Ray lets this actor see.
            holdings: (setup, data), in the object store.
        """
        self._number, self._device, self._holdings = number, torch.device(device), holdings
        self._handler: Handler | None = None

    def error_log(self) -> str:
        """Where this process writes its errors, such as the stack of a fatal signal."""
        link = Path("/proc/self/fd/2")
        return os.readlink(link) if link.exists() else ""

    def ready(self) -> Event:
        """Set up the handler."""
        try:
            settle(self._device)
            lent = borrowed(self._holdings)
            for chunk in lent.chunks:
                forbid_writing(chunk)
            setup, data = unpack(lent)
            self._handler = setup(data, WorkerPlace(self._number, self._device))
        except BaseException as error:
            return Refused(Trouble.of(error))
        return Ready()

    def run(self, broadcast: Parcel, tasks: Parcel) -> Iterator[Event]:
        """Tell of every task of a call as it ends."""
        try:
            if self._handler is None:
                raise RuntimeError("The worker was not set up.")
            value, todo = unpack(borrowed(broadcast)), unpack(owned(tasks))
        except Exception as error:
            yield Raised(Trouble.of(error, "The worker cannot read its call: "))
            return
        yield from perform(self._handler, value, todo, shippable)


def shippable(parcel: Parcel) -> Parcel:
    """The parcel with chunks that keep their residues where each is stored at an aligned address."""
    chunks = zip(parcel.chunks, parcel.residues, strict=True)
    padded = tuple(_padded(chunk, residue) if residue else chunk for chunk, residue in chunks)
    return Parcel(parcel.blob, parcel.regions, padded, parcel.residues)


def borrowed(parcel: Parcel) -> Parcel:
    """A shippable parcel opened in place, in memory that belongs to the object store."""
    chunks = zip(parcel.chunks, parcel.residues, strict=True)
    views = tuple(writable(chunk)[residue:] for chunk, residue in chunks)
    return Parcel(parcel.blob, parcel.regions, views, parcel.residues)


def owned(parcel: Parcel) -> Parcel:
    """A shippable parcel copied out of the object store, each chunk into memory of its own."""
    copies = []
    for chunk, residue in zip(parcel.chunks, parcel.residues, strict=True):
        copy = empty_chunk(chunk.nbytes - residue, residue)
        np.copyto(copy, chunk[residue:])
        copies.append(copy)
    return Parcel(parcel.blob, parcel.regions, tuple(copies), parcel.residues)


def forbid_writing(chunk: Bytes) -> None:
    """Make this process's view of stored memory read-only, as far as it fills whole pages.

    Ray maps its store writable, and torch knows no read-only tensors: a client that wrote to its data
    would change that of all workers. Now its process ends with SIGSEGV instead, and the client is named.
    """
    page = mmap.PAGESIZE
    first = -(-address_of(chunk) // page) * page
    size = (address_of(chunk) + chunk.nbytes) // page * page - first
    if size > 0:
        ctypes.CDLL(None, use_errno=True).mprotect(
            ctypes.c_void_p(first), ctypes.c_size_t(size), mmap.PROT_READ
        )


def _padded(chunk: Bytes, residue: int) -> Bytes:
    block = np.zeros(residue + chunk.nbytes, dtype=np.uint8)
    block[residue:] = chunk
    return block
