"""Flower records as plain tuples: what travels between the driver and its workers.

Packing takes a snapshot: a client that keeps and changes the records that it was given, or returned, changes
nothing elsewhere, in the driver's process as in any other. Bytes are immutable and are never copied here.

Within one call to the engine, a content that several messages carry is packed once, and so is a buffer that
lies in several contents (the same model sent beside different configurations); both go into the broadcast,
which the engine places once per machine.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from numpy.typing import NDArray


class PackedArray(NamedTuple):
    """A serialised array; `data` is its bytes, or its place among the broadcast's buffers."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    stype: str
    data: bytes | int


class PackedRecord(NamedTuple):
    """A record of a content: its class, and arrays or (name, value) pairs."""

    name: str
    kind: type[ArrayRecord] | type[MetricRecord] | type[ConfigRecord]
    entries: tuple[Any, ...]


Packed = tuple[PackedRecord, ...]
NOTHING: Packed = ()


@dataclass(frozen=True)
class Broadcast:
    """What all messages of one call share.

    Attributes:
        buffers: serialised arrays that more than one message carries, as uint8.
        contents: contents that more than one message carries.
    """

    buffers: tuple[NDArray[np.uint8], ...] = ()
    contents: tuple[Packed, ...] = ()


def pack(content: RecordDict, places: Mapping[int, int] | None = None) -> Packed:
    """A snapshot of a content; `places` maps the id of a shared buffer to its place in the broadcast."""
    return tuple(_pack_record(name, record, places or {}) for name, record in content.items())


def unpack(packed: Packed, buffers: Sequence[bytes] = ()) -> RecordDict:
    """Fresh records that share nothing mutable with `packed`."""
    content = RecordDict()
    for name, kind, entries in packed:
        if kind is ArrayRecord:
            content[name] = record = ArrayRecord()
            for entry in entries:
                record[entry.name] = _unpack_array(entry, buffers)
        else:
            content[name] = kind({key: _copy(value) for key, value in entries})
    return content


def ship(contents: Sequence[RecordDict]) -> tuple[Broadcast, list[int | Packed]]:
    """Pack the contents of one call; the same object may stand in several places.

    Returns:
        The broadcast, and for each content its packed form or its place in `Broadcast.contents`.
    """
    uses = Counter(id(content) for content in contents)
    distinct = {id(content): content for content in contents}
    buffers = _shared_buffers([(content, uses[key]) for key, content in distinct.items()])
    places = {id(data): place for place, data in enumerate(buffers)}
    packed = {key: pack(content, places) for key, content in distinct.items()}
    shared = [key for key in packed if uses[key] > 1]
    index = {key: place for place, key in enumerate(shared)}
    views = tuple(np.frombuffer(data, dtype=np.uint8) for data in buffers)
    broadcast = Broadcast(views, tuple(packed[key] for key in shared))
    return broadcast, [index[id(c)] if id(c) in index else packed[id(c)] for c in contents]


def _shared_buffers(contents: Sequence[tuple[RecordDict, int]]) -> list[bytes]:
    """The buffers that more than one message carries, in order of first appearance."""
    seen: Counter[int] = Counter()
    buffers: dict[int, bytes] = {}
    for content, messages in contents:
        own = {id(a.data): a.data for record in content.array_records.values() for a in record.values()}
        seen.update(dict.fromkeys(own, messages))
        buffers.update(own)
    return [data for key, data in buffers.items() if seen[key] > 1]


def _pack_record(name: str, record: Any, places: Mapping[int, int]) -> PackedRecord:
    if isinstance(record, ArrayRecord):
        arrays = tuple(
            PackedArray(key, a.dtype, tuple(a.shape), a.stype, places.get(id(a.data), a.data))
            for key, a in record.items()
        )
        return PackedRecord(name, ArrayRecord, arrays)
    kind = MetricRecord if isinstance(record, MetricRecord) else ConfigRecord
    return PackedRecord(name, kind, tuple((key, _copy(value)) for key, value in record.items()))


def _unpack_array(entry: PackedArray, buffers: Sequence[bytes]) -> Array:
    data = buffers[entry.data] if isinstance(entry.data, int) else entry.data
    return Array(entry.dtype, entry.shape, entry.stype, data)


def _copy(value: Any) -> Any:
    return list(value) if isinstance(value, list) else value
