"""What `fedsim check` reports of a federation before any round; pure functions, plain values."""

from collections.abc import Iterator
from dataclasses import fields
from typing import Any

import numpy as np
import torch

from fedsim.contracts import FederatedData
from fedsim.data.leakage import leakage

_SPLITS = ("train", "val", "test")


def preflight(data: FederatedData) -> dict[str, Any]:
    """Everything below, by name."""
    return {
        "sizes": sizes(data),
        "labels": label_histogram(data),
        "empty": empty_splits(data),
        "leakage": leakage(data),
        "bytes": memory_bytes(data),
    }


def sizes(data: FederatedData) -> list[dict[str, int]]:
    """Examples per split of each client."""
    return [{split: len(getattr(client, split)) for split in _SPLITS} for client in data.clients]


def label_histogram(data: FederatedData) -> list[list[int]]:
    """For each client, how many training examples each of its classes has."""
    return [
        np.bincount(client.train.labels().cpu().numpy(), minlength=client.spec.classes).tolist()
        for client in data.clients
    ]


def empty_splits(data: FederatedData) -> dict[str, list[int]]:
    """The clients whose val or test split is empty; an empty train split never leaves `federate`."""
    return {
        split: [number for number, client in enumerate(data.clients) if not len(getattr(client, split))]
        for split in _SPLITS
    }


def memory_bytes(data: FederatedData) -> int:
    """Bytes of all tensors, each memory counted once."""
    held: dict[int, int] = {}
    splits = [getattr(client, split) for client in data.clients for split in _SPLITS]
    for examples in [*splits, *([] if data.test is None else [data.test])]:
        for tensor in _tensors(examples):
            storage = tensor.untyped_storage()
            held[storage.data_ptr()] = storage.nbytes()
    return sum(held.values())


def _tensors(examples: Any) -> Iterator[torch.Tensor]:
    for field in fields(examples):
        value = getattr(examples, field.name)
        if isinstance(value, torch.Tensor):
            yield value
