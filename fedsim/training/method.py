"""The parts of a client method that most methods do not need."""

from collections.abc import Mapping
from typing import Protocol, runtime_checkable

import torch
from torch import nn

from fedsim.contracts import ClientInfo, ClientMethod, Tensors
from fedsim.errors import RoundError
from fedsim.metrics import Sum

DIAGNOSTIC = "diagnostic_"
"""Prefix of metrics that tell of a client's model or data, not of how well it predicts."""


class WithoutState:
    """Base of methods that add no private tensors and send nothing beside the update."""

    def init(self, client: ClientInfo, rng: torch.Generator) -> Tensors:
        """No private tensors beyond the model's own, which start at the template's values."""
        return {}

    def finish(
        self, before: Tensors, after: Tensors, private: Tensors, downlink: Tensors, steps: int
    ) -> tuple[Tensors, Tensors]:
        """No uplink; the private tensors as training left them."""
        return {}, private


@runtime_checkable
class Diagnosing(Protocol):
    """A method that tells more of a client's model than how well it predicts."""

    def diagnose(self, client: ClientInfo, model: nn.Module, tensors: Tensors) -> Mapping[str, float]:
        """Numbers by name, one of each per client and evaluation.

        They leave the client, as all metrics do: a method that computes them from private tensors does so
        only where its table asks for it.

        Args:
            client: its number and data.
            model: the template of the program's model.
            tensors: all tensors of the client.
        """
        ...


def diagnostics(
    method: ClientMethod, client: ClientInfo, model: nn.Module, tensors: Tensors
) -> dict[str, Sum]:
    """What the method tells of a client, as metrics named `diagnostic_...`; nothing for most methods."""
    if not isinstance(method, Diagnosing):
        return {}
    found = method.diagnose(client, model, tensors)
    return {DIAGNOSTIC + name: Sum(float(value), 1.0) for name, value in found.items()}


def adds_private(method: ClientMethod) -> bool:
    """Has the method an `init` of its own?"""
    own: object = type(method).init
    return own is not WithoutState.init


def finishes(method: ClientMethod) -> bool:
    """Has the method a `finish` of its own?"""
    own: object = type(method).finish
    return own is not WithoutState.finish


def finished(
    method: ClientMethod, before: Tensors, after: Tensors, private: Tensors, downlink: Tensors, steps: int
) -> tuple[Tensors, Tensors]:
    """What `method.finish` returns.

    Raises:
        RoundError: it wrote into what all clients of a worker share.
    """
    shared = {**before, **downlink}
    versions = [tensor._version for tensor in shared.values()]
    uplink, left = method.finish(before, after, private, downlink, steps)
    for (name, tensor), version in zip(shared.items(), versions, strict=True):
        if tensor._version != version:
            raise RoundError(
                f"{type(method).__name__}.finish changed the received tensor {name!r} in place, which other "
                "clients share: work on a clone."
            )
    return uplink, left
