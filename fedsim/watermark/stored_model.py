"""A model in a safetensors file, with the table that it was built from in the file's header."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from fedsim.contracts import DataSpec, Tensors
from fedsim.errors import ConfigError
from fedsim.plugins import build
from fedsim.training.functional import model_tensors
from fedsim.training.template import SeededModel
from fedsim.watermark.forward import GraphModel
from fedsim.watermark.suspect import Suspect

_HEADER = "fedsim.model"


def build_model(table: Mapping[str, Any], features: int, classes: int, seed: int = 0) -> nn.Module:
    """A template for nodes, from a `[model]` table.

    Raises:
        ConfigError: the table cannot be used.
    """
    builder = build("models", table, "model", rounds=1)
    try:
        return SeededModel(builder, seed).build(DataSpec("nodes", (features,), classes))
    except (RuntimeError, TypeError, OverflowError, MemoryError) as error:  # of absurd sizes
        told = " ".join(str(error).split())[:100]
        raise ConfigError(
            f"model: cannot be built with {dict(table)}: {type(error).__name__}: {told}"
        ) from None


def header(table: Mapping[str, Any], features: int, classes: int) -> dict[str, str]:
    """The file's metadata, from which `read_model` builds the template again."""
    content = {"model": dict(table), "features": features, "classes": classes}
    return {_HEADER: json.dumps(content, sort_keys=True)}


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """(tensors, metadata) of a safetensors file.

    Raises:
        ConfigError: no such file, or it is something else.
    """
    if not path.is_file():
        raise ConfigError(
            f"{path}: no such file; a suspect is a safetensors file, module:function or http://."
        )
    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}, file.metadata() or {}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise ConfigError(f"{path}: is not a safetensors file: {error}.") from None


def read_model(
    path: Path, features: int, classes: int, table: Mapping[str, Any] | None = None
) -> tuple[nn.Module, dict[str, Tensor]]:
    """The template and the tensors of a stored model.

    Args:
        path: of a file written by `fedsim watermark embed`, or `model.safetensors` in the folder of a run.
        features: of the data that it will be shown.
        classes: that it must answer for.
        table: the `[model]` table, where neither the file nor a manifest beside it tells.

    Raises:
        ConfigError: it cannot be read, or is for other data.
    """
    tensors, metadata = read_tensors(path)
    told = _told(path, metadata)
    found = table or told.get("model")
    if not isinstance(found, Mapping):
        raise ConfigError(f"{path}: does not say how its model is built: add --set model.kind=... .")
    for name, wanted in (("features", features), ("classes", classes)):
        if told.get(name, wanted) != wanted:
            raise ConfigError(f"{path}: is a model for {told[name]} {name}, but the key is for {wanted}.")
    model = build_model(found, features, classes)
    _check(path, tensors, model_tensors(model))
    return model, tensors


def stored_spec(path: Path, metadata: Mapping[str, str]) -> tuple[int, int]:
    """(features, classes) that a file's header tells.

    Raises:
        ConfigError: it does not.
    """
    told = _told(path, metadata)
    if not {"features", "classes"} <= set(told):
        raise ConfigError(f"{path}: was not written by `fedsim watermark embed`, so its input is unknown.")
    return int(told["features"]), int(told["classes"])


def file_suspect(path: Path, features: int, classes: int, table: Mapping[str, Any] | None = None) -> Suspect:
    """A stored model as a suspect; see `read_model`."""
    model, tensors = read_model(path, features, classes, table)
    return tensors_suspect(str(path), model, tensors)


def tensors_suspect(name: str, model: nn.Module, tensors: Tensors) -> Suspect:
    """A model in memory as a suspect."""

    def query(x: Tensor, edge_index: Tensor) -> Tensor:
        with torch.no_grad():
            return GraphModel(model, x, edge_index).probabilities(tensors)

    return Suspect(name, query)


def _told(path: Path, metadata: Mapping[str, str]) -> dict[str, Any]:
    """What the header says, or the manifest of the run beside the file."""
    manifest = path.with_name("manifest.json")
    try:
        if _HEADER in metadata:
            return dict(json.loads(metadata[_HEADER]))
        if manifest.is_file():
            model = json.loads(manifest.read_text(encoding="utf-8"))["config"]["model"]
            return {"model": model}
    except (ValueError, KeyError, TypeError):
        pass
    return {}


def _check(path: Path, found: Tensors, wanted: Tensors) -> None:
    for name, tensor in wanted.items():
        shape = list(found[name].shape) if name in found else "nothing"
        if shape != list(tensor.shape):
            raise ConfigError(f"{path}: tensor {name} should have shape {list(tensor.shape)}, found {shape}.")
