"""A loss that is pulled towards the received model, as FedProx and Ditto have it."""

import math

import torch
from torch import Tensor, nn

from fedsim.contracts import Batch, Context, Losses, Tensors
from fedsim.errors import ConfigError
from fedsim.training.functional import parameter_names


def pulled(losses: Losses, model: nn.Module, strength: float, prefix: str = "") -> Losses:
    """`losses` + strength / 2 |v - w_t|^2, over the parameters that are shared.

    Args:
        losses: of the same tensors; one loss.
        model: says which tensors are parameters.
        strength: the paper's mu (FedProx) or lambda (Ditto).
        prefix: of v's names; w_t are the received tensors, without it.
    """
    parameters = parameter_names(model)

    def with_pull(tensors: Tensors, batch: Batch, context: Context) -> tuple[Tensor, Tensors]:
        value, buffers = losses(tensors, batch, context)
        distances = [
            (tensors[prefix + name] - received).square().sum()
            for name, received in context.anchor.items()
            if name in parameters
        ]
        return value + strength / 2 * torch.stack(distances).sum(), buffers

    return with_pull if strength else losses


def refuse_negative(key: str, value: float) -> None:
    """Refuse a strength that is negative or not finite.

    Raises:
        ConfigError: it is.
    """
    if not (value >= 0 and math.isfinite(value)):
        raise ConfigError(f"{key} must be at least 0 and finite, found {value}.")
