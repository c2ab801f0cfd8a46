"""Named tensors and one flat vector, with an exact round trip.

Floating-point tensors are laid end to end in the widest of their types (float16 and bfloat16 embed
exactly in float32, float32 in float64). Integer and boolean tensors, such as BatchNorm's counters, stay
apart under their names: no rule ever averages them into floats.
"""

import hashlib
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from fedsim.errors import RoundError

_WIDTH = {torch.float16: 0, torch.bfloat16: 0, torch.float32: 1, torch.float64: 2}


@dataclass(frozen=True)
class Layout:
    """Where each named tensor lies in the flat vector.

    Attributes:
        floats: (name, shape, dtype) of each floating-point tensor, in the order of the vector.
        integers: (name, shape, dtype) of each integer or boolean tensor; not part of the vector.
        buffers: names of floating-point tensors that no optimiser trains, such as BatchNorm's statistics;
            layouts that differ in them alone are equal.
    """

    floats: tuple[tuple[str, tuple[int, ...], torch.dtype], ...]
    integers: tuple[tuple[str, tuple[int, ...], torch.dtype], ...]
    buffers: frozenset[str] = field(default=frozenset(), compare=False)

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor], buffers: Collection[str] = ()) -> "Layout":
        """The layout of `tensors`, in their own order.

        Args:
            tensors: by name.
            buffers: names of those that are not trained; integer ones and strangers are left out.

        Raises:
            RoundError: a tensor is complex or of another type that no rule can average.
        """
        floats, integers = [], []
        for name, tensor in tensors.items():
            entry = (name, tuple(tensor.shape), tensor.dtype)
            if tensor.dtype in _WIDTH:
                floats.append(entry)
            elif not tensor.is_floating_point() and not tensor.is_complex():
                integers.append(entry)
            else:
                raise RoundError(f"Tensor {name!r} has type {tensor.dtype}, which cannot be averaged.")
        known = {name for name, _, _ in floats}
        return cls(tuple(floats), tuple(integers), frozenset(buffers) & known)

    @cached_property
    def size(self) -> int:
        """d, the number of floating-point values."""
        return sum(math.prod(shape) for _, shape, _ in self.floats)

    @cached_property
    def dtype(self) -> torch.dtype:
        """The type of the flat vector: float64 if any tensor is, else float32."""
        widest = max((dtype for _, _, dtype in self.floats), key=_WIDTH.__getitem__, default=torch.float32)
        return torch.promote_types(widest, torch.float32)

    @cached_property
    def trained(self) -> Tensor | None:
        """[d] bool: what an optimiser trains; None where that is everything.

        Lengths, distances and angles of updates are taken over these values: BatchNorm's statistics move
        several times as far as parameters do, and would drown them.
        """
        if not self.buffers:
            return None
        kept = [torch.full((math.prod(shape),), name not in self.buffers) for name, shape, _ in self.floats]
        return torch.cat(kept)

    def flatten(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """[d] in `self.dtype`: the floating-point tensors, end to end, in canonical memory order.

        Raises:
            RoundError: a tensor is missing or has another shape.
        """
        self._check(tensors)
        if not self.floats:
            return torch.zeros(0, dtype=self.dtype)
        parts = [tensors[name].detach().reshape(-1).to(self.dtype) for name, _, _ in self.floats]
        return torch.cat(parts)

    def integers_of(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The integer tensors alone."""
        return {name: tensors[name].detach() for name, _, _ in self.integers}

    def unflatten(self, vector: Tensor, integers: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Named tensors with the types of the layout.

        Args:
            vector: [d]; tensors of the vector's own type are views of it.
            integers: the integer tensors by name.
        """
        sizes = [math.prod(shape) for _, shape, _ in self.floats]
        pieces = torch.split(vector, sizes) if sizes else ()
        named = {
            name: piece.view(shape).to(dtype)
            for (name, shape, dtype), piece in zip(self.floats, pieces, strict=True)
        }
        return named | {name: integers[name] for name, _, _ in self.integers}

    def _check(self, tensors: Mapping[str, Tensor]) -> None:
        for name, shape, _ in (*self.floats, *self.integers):
            found = tuple(tensors[name].shape) if name in tensors else None
            if found != shape:
                raise RoundError(f"Tensor {name!r} should have shape {shape}, found {found}.")


def digest(tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 over names, types, shapes and bytes, in the order of names."""
    state = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        state.update(f"{name}|{tensor.dtype}|{tuple(tensor.shape)}|".encode())
        if tensor.numel():  # an empty one may have stride 0, which cannot be viewed as bytes
            state.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
    return state.hexdigest()
