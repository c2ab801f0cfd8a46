"""Pruning: small weights, or whole units, become 0.

Han et al., "Learning both Weights and Connections for Efficient Neural Networks", NeurIPS 2015 (weights, by
magnitude over the whole model), and Li et al., "Pruning Filters for Efficient ConvNets", ICLR 2017 (units, by
norm within a layer), both without retraining.
"""

from collections import defaultdict

import torch
from torch import Tensor

from fedsim.contracts import Tensors
from fedsim.errors import ConfigError


def prune_weights(tensors: Tensors, share: float) -> dict[str, Tensor]:
    """The model without its smallest weights; biases stay.

    Args:
        tensors: of the model.
        share: of all entries of matrices, in [0, 1], counted over the whole model.
    """
    refuse_share(share)
    matrices = {name: tensor for name, tensor in tensors.items() if tensor.dim() >= 2}
    magnitudes = torch.cat([tensor.abs().flatten() for tensor in matrices.values()])
    dropped = torch.zeros(len(magnitudes), dtype=torch.bool)
    dropped[magnitudes.sort(stable=True).indices[: round(share * len(magnitudes))]] = True
    sizes = [tensor.numel() for tensor in matrices.values()]
    found = {name: tensor.clone() for name, tensor in tensors.items()}
    for name, mask in zip(matrices, torch.split(dropped, sizes), strict=True):
        found[name][mask.view_as(found[name])] = 0.0
    return found


def prune_units(tensors: Tensors, share: float, keep: tuple[str, ...] = ("head",)) -> dict[str, Tensor]:
    """The model without the units of smallest norm in each layer.

    A layer is what has one module name up to its number, such as `convolutions.0`; all its rows of a unit,
    and the unit's bias, count and go together.

    Args:
        tensors: of the model.
        share: of the units of each layer, in [0, 1].
        keep: names that begin so are left alone: units of the last layer are the classes.
    """
    refuse_share(share)
    layers: dict[tuple[str, int], list[str]] = defaultdict(list)
    for name, tensor in tensors.items():
        if tensor.dim() and not name.startswith(keep):
            layers[".".join(name.split(".")[:2]), len(tensor)].append(name)
    found = {name: tensor.clone() for name, tensor in tensors.items()}
    for (_, units), names in layers.items():
        squares = sum(
            (tensors[name].reshape(units, -1).square().sum(dim=1) for name in names), torch.zeros(units)
        )
        weakest = squares.sort(stable=True).indices[: round(share * units)]
        for name in names:
            found[name][weakest] = 0.0
    return found


def refuse_share(share: float) -> None:
    """Refuse what is no share.

    Raises:
        ConfigError: it is outside [0, 1].
    """
    if not 0 <= share <= 1:
        raise ConfigError(f"share must be between 0 and 1, found {share}.")
