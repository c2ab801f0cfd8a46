"""Tensors, statistics and orders as Flower records, exact to the bit.

Flower's `Array` writes tensors with `np.save`, which knows no bfloat16 and no float8 and loses memory
formats. Here tensors are brought to canonical memory order first, and a type that NumPy lacks travels as
its bytes under its torch name. Orders and results of a round (`fedsim.federation`) are spelt below; a
client's private tensors have no place in either.
"""

from collections.abc import Mapping

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from torch import Tensor

from fedsim.contracts import Failure, LocalEvaluation, LocalUpdate, Tensors
from fedsim.errors import RoundError
from fedsim.federation import EvaluateOrder, Order, TrainOrder
from fedsim.metrics import Sum

RAW = "fedsim.raw"  # the serialisation of types that NumPy lacks: bytes in native order
_RAW_TYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2)
}


def to_array(tensor: Tensor) -> Array:
    """One tensor of any type, shape and memory format, as Flower's serialised array."""
    canonical = tensor.detach().cpu().contiguous(memory_format=torch.contiguous_format)
    name = str(tensor.dtype).removeprefix("torch.")
    if name not in _RAW_TYPES:
        return Array(canonical.resolve_conj().resolve_neg().numpy())
    data = canonical.reshape(-1).view(torch.uint8).numpy().tobytes() if canonical.numel() else b""
    return Array(name, tuple(canonical.shape), RAW, data)


def to_tensor(array: Array) -> Tensor:
    """The tensor that `to_array` was given, in canonical memory order; it owns its memory.

    Raises:
        RoundError: the array was serialised by something else than NumPy or `to_array`.
    """
    if array.stype != RAW:
        try:
            return torch.from_numpy(np.asarray(array.numpy()))
        except TypeError as error:
            raise RoundError(
                f"An array of type {array.dtype!r} cannot be read as a tensor: {error}"
            ) from error
    if array.dtype not in _RAW_TYPES:
        raise RoundError(f"An array has type {array.dtype!r}, which this release does not know.")
    dtype = _RAW_TYPES[array.dtype]
    if not array.data:
        return torch.empty(array.shape, dtype=dtype)
    return torch.frombuffer(bytearray(array.data), dtype=dtype).reshape(array.shape)


def to_arrays(tensors: Tensors) -> ArrayRecord:
    """Named tensors, in their order."""
    return ArrayRecord({name: to_array(tensor) for name, tensor in tensors.items()})


def to_tensors(record: ArrayRecord) -> dict[str, Tensor]:
    """The named tensors of a record, in its order."""
    return {name: to_tensor(array) for name, array in record.items()}


def order_records(order: Order) -> dict[str, ArrayRecord]:
    """The tensors of an order: the same records serve every client of the round."""
    return {
        "vector": to_arrays({"vector": order.vector}),
        "integers": to_arrays(order.integers),
        "downlink": to_arrays(order.downlink),
    }


def train_order(content: RecordDict) -> TrainOrder:
    """The order in a training message."""
    return TrainOrder(
        round=int(_number(content, "order", "round")),
        vector=to_tensor(content.array_records["vector"]["vector"]),
        integers=to_tensors(content.array_records["integers"]),
        downlink=to_tensors(content.array_records["downlink"]),
    )


def evaluate_order(content: RecordDict) -> EvaluateOrder:
    """The order in an evaluation message."""
    order, splits = train_order(content), content.config_records["order"]["splits"]
    return EvaluateOrder(
        round=order.round,
        vector=order.vector,
        integers=order.integers,
        downlink=order.downlink,
        splits=tuple(str(split) for split in splits) if isinstance(splits, list) else (),
    )


def update_records(update: LocalUpdate) -> RecordDict:
    """What a client sends back: all but its private tensors, of which it says only whether it keeps any."""
    return RecordDict(
        {
            "update": to_arrays({"update": update.update}),
            "integers": to_arrays(update.integers),
            "uplink": to_arrays(update.uplink),
            "metrics": sums_record(update.metrics),
            "reply": ConfigRecord(
                {"examples": update.examples, "steps": update.steps, "keeps_private": bool(update.private)}
            ),
        }
    )


def update_of(content: RecordDict, partition: int) -> LocalUpdate:
    """The reply of one client; its private tensors stayed with it."""
    return LocalUpdate(
        partition=partition,
        update=to_tensor(content.array_records["update"]["update"]),
        integers=to_tensors(content.array_records["integers"]),
        examples=int(_number(content, "reply", "examples")),
        steps=int(_number(content, "reply", "steps")),
        uplink=to_tensors(content.array_records["uplink"]),
        metrics=sums_of(content.metric_records["metrics"]),
        private={},
    )


def evaluation_records(evaluation: LocalEvaluation) -> RecordDict:
    """A client's statistics."""
    return RecordDict({"metrics": sums_record(evaluation.metrics)})


def evaluation_of(content: RecordDict, partition: int) -> LocalEvaluation:
    """The statistics of one client."""
    return LocalEvaluation(partition, sums_of(content.metric_records["metrics"]))


def failure_records(failure: Failure) -> RecordDict:
    """What a client tells of its own failure; the server adds round and partition."""
    words = {"kind": failure.kind, "message": failure.message, "traceback": failure.traceback}
    return RecordDict({"failure": ConfigRecord(dict(words))})


def failure_of(content: RecordDict, round: int, partition: int) -> Failure | None:
    """The failure in a reply, or None."""
    if "failure" not in content.config_records:
        return None
    words = content.config_records["failure"]
    kind = words["kind"]
    return Failure(
        round=round,
        partition=partition,
        worker=None,
        kind=kind if kind in ("died", "deadline", "refused") else "exception",  # type: ignore[arg-type]
        message=str(words["message"]),
        traceback=str(words["traceback"]),
    )


def sums_record(sums: Mapping[str, Sum]) -> MetricRecord:
    """Each statistic as [total, count] in float64."""
    return MetricRecord({name: [float(value.total), float(value.count)] for name, value in sums.items()})


def sums_of(record: MetricRecord) -> dict[str, Sum]:
    """The statistics of a record."""
    return {name: Sum(*value) for name, value in record.items() if isinstance(value, list)}


def _number(content: RecordDict, record: str, key: str) -> float:
    """A number from a config record.

    Raises:
        RoundError: it is missing or not a number.
    """
    value = content.config_records[record][key]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise RoundError(f"The message's {record}.{key} should be a number, found {value!r}.")
    return value
