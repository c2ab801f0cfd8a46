"""An object graph, pickled apart from the memory of its tensors and arrays.

The memory can then be placed once per machine (an anonymous file, Ray's object store) and viewed by every
worker without a copy. Arrays that overlap in memory still do so after unpacking. Addresses keep their value
modulo 64, because vectorised kernels may round differently on differently aligned operands.
"""

import io
import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from types import FunctionType
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

ALIGNMENT = 64  # bytes: a cache line, and the widest vector register
Bytes = NDArray[np.uint8]


@dataclass(frozen=True)
class Parcel:
    """A packed object graph.

    Attributes:
        blob: the pickle.
        regions: (chunk, first byte, bytes) of each array, in the order of the pickle.
        chunks: the memory; no two overlapped where they were packed.
        residues: each chunk's address modulo `ALIGNMENT`.
        modules: that unpacking imports, as far as classes and functions show it.
    """

    blob: bytes
    regions: tuple[tuple[int, int, int], ...]
    chunks: tuple[Bytes, ...]
    residues: tuple[int, ...]
    modules: tuple[str, ...] = ()

    @property
    def nbytes(self) -> int:
        """Bytes of array memory."""
        return sum(chunk.nbytes for chunk in self.chunks)


class _Memory:
    """Makes numpy view a range of memory, writable, for as long as `owner` lives."""

    def __init__(self, address: int, nbytes: int, owner: object) -> None:
        self.__array_interface__ = {
            "data": (address, False),
            "shape": (nbytes,),
            "typestr": "|u1",
            "version": 3,
        }
        self.owner = owner


def address_of(array: Bytes) -> int:
    """Where the array's memory begins."""
    return int(array.__array_interface__["data"][0])


def writable(array: Bytes) -> Bytes:
    """The same memory without numpy's read-only flag, which torch cannot express and warns about.

    Nothing may write to it: clients get their data as a loan.
    """
    return array if array.flags.writeable else np.asarray(_Memory(address_of(array), array.nbytes, array))


def empty_chunk(nbytes: int, residue: int = 0) -> Bytes:
    """Fresh memory at an address that is `residue` modulo `ALIGNMENT`."""
    block = np.empty(nbytes + ALIGNMENT, dtype=np.uint8)
    start = (residue - address_of(block)) % ALIGNMENT
    return block[start : start + nbytes]


def pack(value: Any) -> Parcel:
    """The graph below `value`; chunks are views of its own memory, nothing is copied.

    Dense CPU tensors and plain numpy arrays leave the pickle; all else (sparse, CUDA, subclasses) goes the
    way that its type declares. Tensors and arrays with gaps between elements are compacted first.

    Raises:
        Exception: whatever pickling raises.
    """
    stream = io.BytesIO()
    pickler = _Packer(stream)
    pickler.dump(value)
    return Parcel(stream.getvalue(), *_merge(pickler.arrays), tuple(sorted(pickler.modules)))


def unpack(parcel: Parcel) -> Any:
    """The graph, its arrays and tensors viewing the parcel's chunks.

    Raises:
        Exception: whatever unpickling raises.
    """
    chunks = parcel.chunks
    views = (chunks[chunk][first : first + nbytes] for chunk, first, nbytes in parcel.regions)
    return pickle.loads(parcel.blob, buffers=views)


class _Packer(pickle.Pickler):
    """Takes tensors and arrays out of band, and code that workers cannot import by value."""

    def __init__(self, stream: io.BytesIO) -> None:
        self.arrays: list[Bytes] = []
        self.modules: set[str] = set()
        super().__init__(stream, protocol=5, buffer_callback=self._take)

    def _take(self, buffer: pickle.PickleBuffer) -> None:
        self.arrays.append(np.frombuffer(buffer.raw(), dtype=np.uint8))

    def reducer_override(self, obj: Any) -> Any:
        kind = type(obj)
        if kind is Tensor and _is_plain(obj):
            return _reduce_tensor(obj)
        if kind is np.ndarray and not obj.dtype.hasobject:
            return _reduce_array(obj)
        if kind is FunctionType or isinstance(obj, type):
            reduced = _reduce_code(obj)
            if reduced is NotImplemented:
                self.modules.add(str(obj.__module__))
            return reduced
        return NotImplemented


def _is_plain(tensor: Tensor) -> bool:
    return (
        tensor.device.type == "cpu"
        and tensor.layout is torch.strided
        and not (tensor.is_quantized or tensor.is_conj() or tensor.is_neg())
        and not (tensor.__dict__ or tensor._backward_hooks)
    )


def _reduce_tensor(tensor: Tensor) -> tuple[Callable[..., Tensor], tuple[Any, ...]]:
    bare = tensor.detach()
    span = 1 + sum((size - 1) * stride for size, stride in zip(bare.shape, bare.stride(), strict=True))
    if bare.numel() < span:
        bare = bare.contiguous()
        span = bare.numel()
    memory = None
    if bare.numel():
        flat = bare.as_strided((span,), (1,), bare.storage_offset())
        memory = pickle.PickleBuffer(flat.view(torch.uint8).numpy().data)
    return _tensor, (memory, bare.dtype, tuple(bare.shape), bare.stride(), tensor.requires_grad)


def _tensor(
    memory: Any, dtype: torch.dtype, shape: Sequence[int], stride: Sequence[int], requires_grad: bool
) -> Tensor:
    if memory is None:
        tensor = torch.empty_strided(shape, stride, dtype=dtype)
    else:
        tensor = torch.frombuffer(memory, dtype=dtype).as_strided(shape, stride)
    return tensor.requires_grad_(requires_grad)


def _reduce_array(array: NDArray[Any]) -> tuple[Callable[..., NDArray[Any]], tuple[Any, ...]]:
    order: Literal["C", "F"] = "F" if array.flags.f_contiguous and not array.flags.c_contiguous else "C"
    flat = np.asarray(array, order=order).ravel(order="K")
    memory = pickle.PickleBuffer(flat.view(np.uint8).data) if array.nbytes else None
    return _array, (memory, array.dtype, array.shape, order)


def _array(memory: Any, dtype: np.dtype[Any], shape: tuple[int, ...], order: Any) -> NDArray[Any]:
    if memory is None:
        return np.empty(shape, dtype)
    return np.ndarray(shape, dtype, buffer=memory, order=order)


def _reduce_code(obj: Any) -> Any:
    """Ship what a script or notebook defined, or a closure, by value; the rest by name."""
    if obj.__module__ != "__main__" and "<locals>" not in obj.__qualname__:
        return NotImplemented
    try:
        cloudpickle = import_module("cloudpickle")
    except ImportError:
        return NotImplemented
    return cloudpickle.loads, (cloudpickle.dumps(obj),)


def _merge(
    arrays: Sequence[Bytes],
) -> tuple[tuple[tuple[int, int, int], ...], tuple[Bytes, ...], tuple[int, ...]]:
    """Regions, chunks and residues, with overlapping arrays in one chunk."""
    order = sorted(range(len(arrays)), key=lambda i: (address_of(arrays[i]), -arrays[i].nbytes))
    regions: dict[int, tuple[int, int, int]] = {}
    spans: list[tuple[int, int, list[Bytes]]] = []
    for i in order:
        start = address_of(arrays[i])
        end = start + arrays[i].nbytes
        if spans and start < spans[-1][1]:
            first, last, owners = spans[-1]
            owners.append(arrays[i])
            spans[-1] = (first, max(last, end), owners)
        else:
            spans.append((start, end, [arrays[i]]))
        regions[i] = (len(spans) - 1, start - spans[-1][0], end - start)
    chunks = tuple(np.asarray(_Memory(first, last - first, owners)) for first, last, owners in spans)
    residues = tuple(first % ALIGNMENT for first, _, _ in spans)
    return tuple(regions[i] for i in range(len(arrays))), chunks, residues
