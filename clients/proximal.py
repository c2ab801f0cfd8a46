"""A loss that is pulled towards the received model, as FedProx and Ditto have it."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fedsim.contracts import Batch, Context, Losses, StackedBatch, Tensors
from fedsim.errors import ConfigError
from fedsim.training.functional import parameter_names
from fedsim.training.losses import StackedLosses


def pulled(losses: Losses, model: nn.Module, strength: float, prefix: str = "") -> Losses:
    """`losses` + strength / 2 |v - w_t|^2, over the parameters that are shared.

    Args:
        losses: of the same tensors; one loss.
        model: says which tensors are parameters.
        strength: the paper's mu (FedProx) or lambda (Ditto).
        prefix: of v's names; w_t are the received tensors, without it.
    """
    if not strength:
        return losses
    kind = _StackedPull if isinstance(losses, StackedLosses) else _Pull
    return kind(losses, parameter_names(model), strength, prefix)


@dataclass(frozen=True)
class _Pull:
    """Implements `contracts.Losses`; the arguments of `pulled`, and the names of the parameters."""

    losses: Any  # `Losses`, which may be `StackedLosses` too
    parameters: frozenset[str]
    strength: float
    prefix: str

    def __call__(self, tensors: Tensors, batch: Batch, context: Context) -> tuple[Tensor, Tensors]:
        value, buffers = self.losses(tensors, batch, context)
        distances = [gap.square().sum() for gap in self._gaps(tensors, context)]
        return value + self.strength / 2 * torch.stack(distances).sum(), buffers

    def _gaps(self, tensors: Tensors, context: Context) -> Iterator[Tensor]:
        for name, received in context.anchor.items():
            if name in self.parameters:
                yield tensors[self.prefix + name] - received


class _StackedPull(_Pull):
    """Implements `StackedLosses`."""

    def of_all(self, tensors: Tensors, batch: StackedBatch, context: Context) -> Tensor:
        """[k], each client's loss."""
        distances = [gap.square().flatten(1).sum(dim=1) for gap in self._gaps(tensors, context)]
        plain: Tensor = self.losses.of_all(tensors, batch, context)
        return plain + self.strength / 2 * torch.stack(distances).sum(dim=0)


def refuse_negative(key: str, value: float) -> None:
    """Refuse a strength that is negative or not finite.

    Raises:
        ConfigError: it is.
    """
    if not (value >= 0 and math.isfinite(value)):
        raise ConfigError(f"{key} must be at least 0 and finite, found {value}.")
