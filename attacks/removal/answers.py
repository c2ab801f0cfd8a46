"""What somebody who sells answers may do to them: rounding, noise, labels only. The model stays as it is."""

import torch
from torch import Tensor
from torch.nn import functional

from fedsim.errors import ConfigError
from fedsim.watermark.suspect import Query


def rounded(query: Query, decimals: int) -> Query:
    """Probabilities with so many decimals; rows may then sum to a little more or less than 1."""
    return lambda x, edge_index: query(x, edge_index).round(decimals=decimals)


def noisy(query: Query, deviation: float, rng: torch.Generator) -> Query:
    """Probabilities with Gaussian noise on their logarithms, normalised again.

    Args:
        query: the honest answers.
        deviation: of the noise; 0 changes nothing.
        rng: draws anew at every question.
    """
    if deviation < 0:
        raise ConfigError(f"deviation must be at least 0, found {deviation}.")

    def answer(x: Tensor, edge_index: Tensor) -> Tensor:
        told = query(x, edge_index)
        noise = torch.randn(told.shape, generator=rng, dtype=told.dtype)
        return (told.clamp(min=torch.finfo(told.dtype).tiny).log() + deviation * noise).softmax(dim=-1)

    return answer


def labels_only(query: Query) -> Query:
    """1 for the most probable class, else 0."""

    def answer(x: Tensor, edge_index: Tensor) -> Tensor:
        told = query(x, edge_index)
        return functional.one_hot(told.argmax(dim=-1), told.shape[-1]).to(told.dtype)

    return answer
