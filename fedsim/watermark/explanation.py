"""Which features go with a model's answers: kernel ridge regression of answers on single features.

Downer et al., ICML 2026, section "Explanation"; after Yamada et al., "High-Dimensional Feature Selection by
Feature-Wise Kernelized Lasso", Neural Computation 2014, with a ridge in place of the lasso.

A set of n nodes has features X [n, f] and the model's probabilities P [n, c], each standardised by its own
mean and (sample) standard deviation over all entries. Every feature gives a kernel over pairs of nodes,
exp(-(x_u - x_v)^2 / (0.2 f)), the answers give exp(-|p_u - p_v|^2 / (0.2 c)); kernels are centred on both
sides and scaled to Frobenius norm 1. The explanation is

    e = (K^T K + ridge I)^-1 K^T L   in R^f,  K [n^2, f], L [n^2]

Kernels are symmetric, so the h = n (n + 1) / 2 pairs u <= v stand for all, those with u < v times sqrt(2).
Features that are constant within the set have a zero kernel and e exactly 0; they are left out of the
system. All of it is float64 and differentiable in P.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

Form = Literal["auto", "primal", "dual"]

RIDGE = 0.1  # lambda of the paper
WIDTH = 0.2  # of the kernels, in units of the number of columns
SNAP = 1e-8  # a coefficient below it counts as 0
_FLAT = 1e-12  # a centred kernel of smaller norm is rounding: its nodes cannot be told apart


@dataclass(frozen=True)
class Projection:
    """The part of an explanation that does not depend on the model: e = matrix @ L.

    Attributes:
        matrix: [t, r, h] float64, for t sets and r features.
        nodes: n, of each set.
    """

    matrix: Tensor
    nodes: int

    def explain(self, probabilities: Tensor) -> Tensor:
        """[t, r], not snapped; gradients flow to `probabilities` [t, n, c]."""
        return torch.einsum("trh,th->tr", self.matrix, answer_kernel(probabilities))


def explain(x: Tensor, probabilities: Tensor, ridge: float = RIDGE, form: Form = "auto") -> Tensor:
    """The signed importance of every feature.

    Args:
        x: [n, f] features, or [t, n, f] for t sets.
        probabilities: [n, c] or [t, n, c], the model's answers.
        ridge: lambda, above 0.
        form: solve the system of size f ("primal"), of size h ("dual"), or the smaller one.

    Returns:
        [f] or [t, f] float64; exactly 0 where a feature is constant within the set or |e| < SNAP, and
        everywhere if the answers are all alike.
    """
    if x.dim() == 3:
        pairs = zip(x, probabilities, strict=True)
        return torch.stack([explain(one, answers, ridge, form) for one, answers in pairs])
    columns, active = feature_kernels(x)
    target = answer_kernel(probabilities)
    found = target.new_zeros(x.shape[1])
    if len(active):
        found = found.index_put((active,), _solve(columns, columns.T @ target, target, ridge, form))
    return torch.where(found.abs() < SNAP, torch.zeros_like(found), found)


def projection(x: Tensor, features: Tensor, ridge: float = RIDGE) -> Projection:
    """The explanation of some features of t sets, as a matrix to be applied to any answers.

    Args:
        x: [t, n, f].
        features: [r] int64, the columns wanted.
        ridge: lambda, above 0.
    """
    return Projection(torch.stack([_rows(one, features, ridge) for one in x]), x.shape[1])


def feature_kernels(x: Tensor) -> tuple[Tensor, Tensor]:
    """([h, a] unit columns of the a features that vary, [a] int64 which they are)."""
    x = x.double()
    active = (x != x[:1]).any(dim=0).nonzero()[:, 0]
    values = standardised(x)[:, active]
    upper, lower = _pairs(len(x), x.device)
    kernels = torch.exp((values[upper] - values[lower]).square_().div_(-WIDTH * x.shape[1]))
    columns = _centred(kernels, len(x))
    norms = torch.linalg.vector_norm(columns, dim=0)
    kept = norms > _FLAT
    return columns[:, kept] / norms[kept], active[kept]


def answer_kernel(probabilities: Tensor) -> Tensor:
    """[..., n, c] -> [..., h], of norm 1; zero where all answers are alike."""
    nodes, classes = probabilities.shape[-2:]
    values = standardised(probabilities.double())
    upper, lower = _pairs(nodes, probabilities.device)
    distances = (values[..., upper, :] - values[..., lower, :]).square().sum(dim=-1)
    kernel = torch.exp(-distances / (WIDTH * classes)).unsqueeze(-1)
    centred = _centred(kernel, nodes).squeeze(-1)
    squared = centred.square().sum(dim=-1, keepdim=True)
    varied = squared > _FLAT**2
    # The inner `where` keeps the root of 0, whose gradient is infinite, out of the graph.
    norm = torch.where(varied, squared, torch.ones_like(squared)).sqrt()
    return torch.where(varied, centred / norm, torch.zeros_like(centred))


def standardised(values: Tensor) -> Tensor:
    """Zero mean and unit sample deviation over the last two dimensions; constant values give zeros."""
    centred = values - values.mean(dim=(-2, -1), keepdim=True)
    square = centred.square().sum(dim=(-2, -1), keepdim=True) / (values.shape[-1] * values.shape[-2] - 1)
    varied = square > 0
    return torch.where(varied, centred / torch.where(varied, square, torch.ones_like(square)).sqrt(), 0.0)


def _pairs(nodes: int, device: torch.device) -> tuple[Tensor, Tensor]:
    upper, lower = torch.triu_indices(nodes, nodes, device=device)
    return upper, lower


def _centred(kernels: Tensor, nodes: int) -> Tensor:
    """H K H of half-vectorised kernels [..., h, a], weighted so that products equal those of n^2 entries."""
    upper, lower = _pairs(nodes, kernels.device)
    apart = (upper != lower).to(kernels.dtype).unsqueeze(1)
    shape = (*kernels.shape[:-2], nodes, kernels.shape[-1])
    sums = kernels.new_zeros(shape).index_add(-2, upper, kernels).index_add(-2, lower, kernels * apart)
    means = sums / nodes
    whole = means.mean(dim=-2, keepdim=True)
    centred = kernels - means[..., upper, :] - means[..., lower, :] + whole
    return centred * (1 + apart * (2**0.5 - 1))


def _solve(columns: Tensor, moments: Tensor, target: Tensor, ridge: float, form: Form) -> Tensor:
    """[a]: the ridge solution, by the Cholesky factor of the smaller system unless told otherwise."""
    if form == "primal" or (form == "auto" and columns.shape[1] <= columns.shape[0]):
        found: Tensor = torch.cholesky_solve(moments.unsqueeze(1), _factor(columns.T, ridge))
        return found[:, 0]
    dual: Tensor = torch.cholesky_solve(target.unsqueeze(1), _factor(columns, ridge))
    return columns.T @ dual[:, 0]


def _rows(x: Tensor, features: Tensor, ridge: float) -> Tensor:
    """[r, h] of one set."""
    columns, active = feature_kernels(x)
    place = torch.full((x.shape[1],), -1, device=x.device)
    place[active] = torch.arange(len(active), device=x.device)
    wanted = place[features]
    varied = wanted >= 0
    rows = columns.new_zeros(len(features), columns.shape[0])
    if varied.any():
        rows[varied] = _inverse_rows(columns, wanted[varied], ridge)
    return rows


def _inverse_rows(columns: Tensor, wanted: Tensor, ridge: float) -> Tensor:
    """Rows `wanted` of (K^T K + ridge I)^-1 K^T = K^T (K K^T + ridge I)^-1."""
    if columns.shape[1] <= columns.shape[0]:
        unit = torch.zeros(columns.shape[1], len(wanted), dtype=columns.dtype, device=columns.device)
        unit[wanted, torch.arange(len(wanted))] = 1.0
        inverse: Tensor = torch.cholesky_solve(unit, _factor(columns.T, ridge))
        return inverse.T @ columns.T
    solved: Tensor = torch.cholesky_solve(columns[:, wanted].contiguous(), _factor(columns, ridge))
    return solved.T


def _factor(matrix: Tensor, ridge: float) -> Tensor:
    gram = matrix @ matrix.T
    gram.diagonal().add_(ridge)
    factor: Tensor = torch.linalg.cholesky(gram)
    return factor
