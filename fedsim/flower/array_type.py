"""The type and shape of a serialised array, also where Flower's older records leave them out."""

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


def is_float(dtype: str) -> bool:
    """Real floating-point numbers."""
    return dtype.startswith("float")


def is_integer(dtype: str) -> bool:
    """Integers of any size, and booleans."""
    return dtype == "bool" or dtype.startswith(("int", "uint"))
