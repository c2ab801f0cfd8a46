"""Quantisation of weights: symmetric, uniform, one scale per tensor, rounded to the nearest level.

Jacob et al., "Quantization and Training of Neural Networks for Efficient Integer-Arithmetic-Only Inference",
CVPR 2018, section 2.1, with zero point 0. The weights are returned as the numbers that the levels stand for.
"""

import torch
from torch import Tensor

from fedsim.contracts import Tensors
from fedsim.errors import ConfigError


def quantise(tensors: Tensors, bits: int) -> dict[str, Tensor]:
    """The model with 2^bits - 1 levels per tensor.

    Args:
        tensors: of the model.
        bits: at least 2; 8 is int8.
    """
    if bits < 2:
        raise ConfigError(f"bits must be at least 2, found {bits}.")
    return {name: _quantised(tensor, 2 ** (bits - 1) - 1) for name, tensor in tensors.items()}


def _quantised(tensor: Tensor, levels: int) -> Tensor:
    largest = tensor.abs().max() if tensor.numel() else torch.zeros(())
    if not largest > 0:
        return tensor.clone()
    scale = largest / levels
    return (tensor / scale).round() * scale
