"""A suspect: anything that answers a graph with probabilities.

A safetensors file, a Python callable `package.module:function`, or an HTTP address that answers
`POST {"x": [[..]], "edge_index": [[..], [..]]}` with `{"probabilities": [[..]]}`.
"""

import http.client
import importlib
import json
import sys
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedsim.errors import ConfigError, attributed
from fedsim.watermark.subgraphs import Subgraphs

Query = Callable[[Tensor, Tensor], Tensor]
"""(x [n, f], edge_index [2, e]) -> probabilities [n, c]."""

TIMEOUT = 60.0  # seconds for one answer
_ROUNDED = 0.05  # the most that rounding to one decimal changes a probability


@dataclass(frozen=True)
class Suspect:
    """What is asked, and what it is called in reports."""

    name: str
    query: Query

    def answers(self, sets: Subgraphs, classes: int) -> Tensor:
        """[t, n, c] float64: the answers to t sets, each asked alone.

        Raises:
            ConfigError: an answer is no matrix of probabilities of this shape, or holds labels only.
        """
        found = [
            checked(self.query(x, edges), len(x), classes, self.name)
            for x, edges in zip(sets.x, sets.edges, strict=True)
        ]
        together = torch.stack(found)
        if bool(((together == 0) | (together == 1)).all()):
            raise ConfigError(
                f"{self.name}: answers with hard labels (all 0 or 1), but the proof needs probabilities."
            )
        return together


def checked(answer: Any, nodes: int, classes: int, name: str) -> Tensor:
    """[n, c] float64, refused unless its rows are probabilities, possibly rounded to one decimal.

    Raises:
        ConfigError: what is wrong with the answer.
    """
    try:
        found = torch.as_tensor(answer).detach().double().cpu()
    except (TypeError, ValueError, RuntimeError):
        raise ConfigError(f"{name}: answers with something that is not a matrix of numbers.") from None
    if found.dim() == 1 and len(found) == nodes:
        raise ConfigError(f"{name}: answers with one number per node, but the proof needs probabilities.")
    if found.dim() != 2 or len(found) != nodes:
        raise ConfigError(
            f"{name}: answers with shape {list(found.shape)}, wanted [{nodes}, {classes}], a row per node."
        )
    if found.shape[1] != classes:
        raise ConfigError(f"{name}: answers for {found.shape[1]} classes, but the key is for {classes}.")
    if not bool(torch.isfinite(found).all()):
        raise ConfigError(f"{name}: answers with numbers that are not finite.")
    off = (found.sum(dim=1) - 1).abs().max()
    if float(found.min()) < 0 or float(found.max()) > 1 or float(off) > _ROUNDED * classes + 1e-9:
        raise ConfigError(f"{name}: answers with rows that are not probabilities (not in [0, 1] with sum 1).")
    return found


def callable_suspect(target: str) -> Suspect:
    """The suspect behind `package.module:function`, looked up in the current directory too.

    Raises:
        ConfigError: it cannot be imported, or is not callable.
    """
    module_name, _, attribute = target.partition(":")
    if "" not in sys.path:
        sys.path.append("")
    try:
        found: Any = importlib.import_module(module_name)
        for part in attribute.split("."):
            found = getattr(found, part)
    except (Exception, SystemExit) as error:  # somebody else's module may raise anything
        raise ConfigError(f"{target}: cannot be imported: {type(error).__name__}: {error}.") from None
    if not callable(found):
        raise ConfigError(f"{target}: is not callable.")

    def query(x: Tensor, edge_index: Tensor) -> Any:
        with attributed(target, ConfigError), torch.no_grad():
            return found(x, edge_index)

    return Suspect(target, query)


def http_suspect(address: str) -> Suspect:
    """The suspect behind an address; it is first asked in `answers`."""
    return Suspect(address, lambda x, edge_index: _post(address, x, edge_index))


def _post(address: str, x: Tensor, edge_index: Tensor) -> Any:
    body = json.dumps({"x": x.tolist(), "edge_index": edge_index.tolist()}).encode()
    request = urllib.request.Request(address, data=body, headers={"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT) as reply:
            content = json.loads(reply.read())
    except urllib.error.HTTPError as error:
        error.close()
        raise ConfigError(f"{address}: answers with HTTP status {error.code}.") from None
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", error)
        raise ConfigError(f"{address}: cannot be asked: {reason}.") from None
    except ValueError:
        raise ConfigError(f"{address}: answers with something that is not JSON.") from None
    if not isinstance(content, dict) or "probabilities" not in content:
        raise ConfigError(f"{address}: answers without a field 'probabilities'.")
    return content["probabilities"]


def is_address(text: str) -> bool:
    """Does the suspect live behind HTTP?"""
    return text.startswith(("http://", "https://"))


def is_callable(text: str) -> bool:
    """Is the suspect named as `package.module:function`?"""
    module, colon, name = text.partition(":")
    parts = [*module.split("."), *name.split(".")]
    return bool(colon) and all(part.isidentifier() for part in parts) and not Path(text).exists()
