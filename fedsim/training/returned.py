"""Tensors on their way back from a worker."""

import torch
from torch import Tensor

from fedsim.contracts import Tensors

_CPU = torch.device("cpu")


def returned(tensors: Tensors) -> dict[str, Tensor]:
    """On the CPU, none of them a view that would drag a larger tensor along."""
    return {name: _compact(tensor.detach().to(_CPU)) for name, tensor in tensors.items()}


def _compact(tensor: Tensor) -> Tensor:
    whole = tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()
    return tensor if whole and tensor.is_contiguous() else tensor.contiguous().clone()
