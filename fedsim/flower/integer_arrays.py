"""Integer arrays that a strategy averaged into floats become integers again before clients see them.

Stock strategies multiply every array by a weight, so that a BatchNorm counter of 3 comes back as
3.0000000000000004. An array is restored, by rounding to the nearest integer, only where all of this holds:
it was an integer when the ServerApp first sent it (same record, key and shape), clients sent it back as an
integer, and now the ServerApp sends it as a float with finite values. An app that changes types on purpose,
such as quantised updates of a float model, never meets all of them.
"""

from collections.abc import Iterable

import numpy as np
from flwr.app import Array, ArrayRecord, RecordDict

from fedsim.flower.array_type import ArrayType, array_type, is_finite, kind_of

Place = tuple[str, str, tuple[int, ...]]  # record, key, shape
_LEGACY = (".parameters", "parameters")  # `fitins.parameters` and `evaluateins.parameters` are one record


class IntegerArrays:
    """What is known of the types of a run's arrays."""

    def __init__(self) -> None:
        self._first: dict[Place, str] = {}  # type when first sent
        self._replied: dict[str, str] = {}  # type in the latest reply, by key
        self.restored: dict[str, str] = {}  # "record[key]" -> type, of all arrays restored so far

    def see_reply(self, content: RecordDict) -> None:
        """Take note of the types that clients send back."""
        for record in content.array_records.values():
            self._replied.update((key, array_type(array).dtype) for key, array in record.items())

    def restore(self, content: RecordDict) -> RecordDict:
        """The content to send: itself, or a copy in which drifted arrays are integers again."""
        drifted = list(self._drifted(content))
        if not drifted:
            return content
        restored = content.copy()
        for name, key, dtype in drifted:
            arrays = ArrayRecord(dict(restored.array_records[name]))
            arrays[key] = rounded(arrays[key], dtype)
            restored[name] = arrays
            self.restored[f"{name}[{key!r}]"] = dtype
        return restored

    def _drifted(self, content: RecordDict) -> Iterable[tuple[str, str, str]]:
        for name, record in content.array_records.items():
            for key, array in record.items():
                now = array_type(array)
                first = self._first.setdefault(_place(name, key, now), now.dtype)
                was_integer = _is_integer(first) and _is_integer(self._replied.get(key, ""))
                if was_integer and kind_of(now.dtype) == "f" and is_finite(array):
                    yield name, key, first


def rounded(array: Array, dtype: str) -> Array:
    """The nearest integers of a float array, as `dtype`; for bool, 0.5 and more is true."""
    values = array.numpy()
    if dtype == "bool":
        return Array(np.asarray(values >= 0.5))
    limits = np.iinfo(dtype)
    return Array(np.asarray(np.clip(np.rint(values), limits.min, limits.max)).astype(dtype))


def _place(name: str, key: str, kind: ArrayType) -> Place:
    return (_LEGACY[1] if name.endswith(_LEGACY[0]) else name, key, kind.shape)


def _is_integer(dtype: str) -> bool:
    return kind_of(dtype) in ("i", "u", "b")
