"""The type and shape of a serialised array, also where Flower's older records leave them out."""

import math
from io import BytesIO
from typing import NamedTuple

import numpy as np
from flwr.app import Array
from flwr.common.constant import SType


class ArrayType(NamedTuple):
    """As NumPy names them; dtype "" where NumPy did not write the array."""

    dtype: str
    shape: tuple[int, ...]


def array_type(array: Array) -> ArrayType:
    """What the array holds; parameters of the older API carry it in their bytes only."""
    if array.stype != SType.NUMPY:
        return ArrayType("", tuple(array.shape))
    if array.dtype:
        return ArrayType(array.dtype, tuple(array.shape))
    stream = BytesIO(array.data)
    version = np.lib.format.read_magic(stream)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, _, dtype = read(stream)
    return ArrayType(str(dtype), shape)


def kind_of(dtype: str) -> str:
    """NumPy's letter for a type: "f" for floats, "c" complex, "i", "u" and "b"; "" where it knows none."""
    try:
        return np.dtype(dtype).kind if dtype else ""
    except TypeError:
        return ""


def is_finite(array: Array) -> bool:
    """Whether every number is finite; integers, and arrays that NumPy did not write, count as finite."""
    dtype, shape = array_type(array)
    if kind_of(dtype) not in ("f", "c"):
        return True
    count = math.prod(shape)
    start = (
        len(array.data) - count * np.dtype(dtype).itemsize
    )  # the numbers are the end of what `np.save` writes
    return bool(np.isfinite(np.frombuffer(array.data, dtype, count, start)).all()) if count else True
