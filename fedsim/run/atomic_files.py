"""Files that are either whole or absent, also after a power cut: write aside, fsync, rename."""

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor


def _commit(temporary: Path, path: Path) -> None:
    """Make `temporary` durable under the name `path`, replacing what was there."""
    with temporary.open("rb") as stream:
        os.fsync(stream.fileno())
    temporary.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _aside(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    return path.with_name(f".{path.name}.{os.getpid()}.partial")


def save_tensors(
    path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None
) -> None:
    """Write a safetensors file; every tensor is copied, so views and shared memory are allowed."""
    temporary = _aside(path)
    whole = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    save_file(whole, temporary, dict(metadata) if metadata else None)
    _commit(temporary, path)


def save_json(path: Path, value: Any) -> None:
    """Write JSON for people: indented, and without the NaN and Infinity that JSON does not have."""
    temporary = _aside(path)
    text = json.dumps(finite(value), indent=2, allow_nan=False, ensure_ascii=False)
    temporary.write_text(text + "\n", encoding="utf-8")
    _commit(temporary, path)


def finite(value: Any) -> Any:
    """The same JSON value with null in place of numbers that are not finite."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [finite(inner) for inner in value]
    return value
