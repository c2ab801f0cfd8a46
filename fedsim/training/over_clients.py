"""A function of one client's tensors, applied to the tensors of many."""

from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _pytree as pytree

_NOT_MAPPABLE = ("vmap", "batching rule", "functorch", "storage of tensor")


def over_clients(function: Callable[..., Any], *stacked: Any) -> Any:
    """What `function` gives for each client, stacked; all at once, or else one client after the other.

    Args:
        function: pure; takes one client's part of each argument.
        stacked: tensors [k, ...], or mappings of such.
    """
    try:
        return torch.func.vmap(function)(*stacked)
    except RuntimeError as error:
        if not cannot_be_mapped(error):
            raise
    leaves, spec = pytree.tree_flatten(stacked)
    each = [function(*pytree.tree_unflatten(list(own), spec)) for own in zip(*leaves, strict=True)]
    return pytree.tree_map(lambda *values: torch.stack(values), *each)


def cannot_be_mapped(error: Exception) -> bool:
    """Does torch say that a function has control flow or operations which `vmap` cannot map?"""
    message = str(error)
    return isinstance(error, RuntimeError) and any(word in message for word in _NOT_MAPPABLE)
