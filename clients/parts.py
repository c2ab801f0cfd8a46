"""Parts of a model by name: `head` means the tensor `head` and every tensor of the module `head`."""

from collections.abc import Iterable, Sequence

from torch import nn

from fedsim.errors import ConfigError
from fedsim.training.functional import model_tensors


def matches(parts: Iterable[str], name: str) -> bool:
    """Does a tensor belong to one of the parts?"""
    return any(name == part or name.startswith(part + ".") for part in parts)


def refuse_unknown_parts(parts: Sequence[str], model: nn.Module) -> None:
    """Refuse a part that the model lacks, and parts that leave nothing to share.

    Raises:
        ConfigError: naming the key `client.private` and what the model has.
    """
    if not parts:
        return
    names = list(model_tensors(model))
    for part in parts:
        if not any(matches([part], name) for name in names):
            known = ", ".join(dict.fromkeys(prefix for name in names for prefix in _prefixes(name)))
            raise ConfigError(f"client.private: the model has no part {part!r}; it has {known}.")
    if all(matches(parts, name) for name in names):
        raise ConfigError(
            f"client.private = {list(parts)} holds the whole model, so nothing is federated: "
            'share a part of it, or take client.kind = "local".'
        )


def _prefixes(name: str) -> list[str]:
    """`a.0.b` -> `a`, `a.0`: the modules that hold a tensor, or the tensor itself where none does."""
    pieces = name.split(".")
    return [".".join(pieces[:end]) for end in range(1, len(pieces))] or [name]
