"""What a stock Flower strategy remembers, as named tensors, so that it can be checkpointed and replayed.

Flower's rules keep momenta and the like as attributes: arrays in lists, in dicts, in `ArrayRecord`s, and
plain numbers. Those that differ from a freshly made object are its state; a tensor's name says where it
belongs: `attribute|kind|key`.
"""

import pickle
from collections.abc import Container, Mapping
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord
from torch import Tensor

from fedsim.contracts import Tensors
from fedsim.errors import RoundError
from fedsim.flower.records import to_arrays, to_tensors

Attributes = dict[str, Any]


def extract(strategy: object, before: Attributes, ignored: Container[str] = ()) -> dict[str, Tensor]:
    """The attributes that are not as they were when the object was made.

    Args:
        strategy: after a step.
        before: `snapshot` of the same object as it was made.
        ignored: attributes that others set.

    Raises:
        RoundError: something changed that is no array, number or flag.
    """
    state: dict[str, Tensor] = {}
    for name, value in vars(strategy).items():
        if name in ignored:
            continue
        encoded = _encode(name, value)
        if encoded is None:
            if name not in before or before[name] != _fingerprint(value):
                raise RoundError(
                    f"{type(strategy).__name__} keeps its state in {name!r}, a {type(value).__name__}: only "
                    "arrays, numbers and flags can be carried from round to round. Write the rule as a "
                    "fedsim strategy instead."
                )
        elif before.get(name) != _fingerprint(value):
            state |= encoded
    return state


def snapshot(strategy: object) -> Attributes:
    """Fingerprints of all attributes."""
    return {name: _fingerprint(value) for name, value in vars(strategy).items()}


def restore(strategy: object, state: Tensors) -> None:
    """Set the attributes that `extract` found, in place."""
    grouped: dict[tuple[str, str], dict[str, Tensor]] = {}
    for address, tensor in state.items():
        name, kind, key = address.split("|", 2)
        grouped.setdefault((name, kind), {})[key] = tensor
    for (name, kind), parts in grouped.items():
        setattr(strategy, name, _decode(kind, parts))


def _fingerprint(value: Any) -> Any:
    try:
        return pickle.dumps(value)
    except Exception:  # objects that cannot be pickled (locks, lambdas) are compared by identity
        return id(value)


def _encode(name: str, value: Any) -> dict[str, Tensor] | None:
    """Named tensors, or None for a value of another kind."""
    if value is None:
        return {f"{name}|none|": torch.zeros(0)}
    if isinstance(value, bool | int | float | np.generic):
        kind = "bool" if isinstance(value, bool | np.bool_) else "scalar"
        return {f"{name}|{kind}|": torch.from_numpy(np.array(value))}
    if isinstance(value, np.ndarray):
        return {f"{name}|array|": _tensor(value)}
    if isinstance(value, ArrayRecord):
        return {f"{name}|record|": torch.zeros(0)} | {
            f"{name}|record|{key}": tensor for key, tensor in to_tensors(value).items()
        }
    if isinstance(value, list | tuple) and all(isinstance(item, np.ndarray | np.generic) for item in value):
        kind = "list" if isinstance(value, list) else "tuple"
        parts = {f"{name}|{kind}|{place}": _tensor(item) for place, item in enumerate(value)}
        return {f"{name}|{kind}|": torch.zeros(0)} | parts
    if isinstance(value, Mapping) and all(
        isinstance(key, str) and isinstance(item, np.ndarray | np.generic) for key, item in value.items()
    ):
        parts = {f"{name}|dict|{key}": _tensor(item) for key, item in value.items()}
        return {f"{name}|dict|": torch.zeros(0)} | parts
    return None


def _decode(kind: str, parts: dict[str, Tensor]) -> Any:
    if kind == "none":
        return None
    if kind in ("bool", "scalar"):
        return parts[""].numpy().item()
    if kind == "array":
        return parts[""].numpy().copy()
    named = {key: tensor for key, tensor in parts.items() if key}
    if kind == "record":
        return to_arrays(named)
    arrays = {key: tensor.numpy().copy() for key, tensor in named.items()}
    if kind == "dict":
        return arrays
    ordered = [arrays[str(place)] for place in range(len(arrays))]
    return ordered if kind == "list" else tuple(ordered)


def _tensor(array: Any) -> Tensor:
    return torch.from_numpy(np.array(array, order="C", copy=True))
