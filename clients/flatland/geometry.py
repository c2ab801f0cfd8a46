"""The hyperboloid in Lorentz coordinates, with one convention throughout: curvature -1/K, K > 0.

K is the squared radius; geoopt's `Lorentz(k)` takes the same number, although its documentation calls it the
curvature. A point is [1 + d] with its time coordinate first:

    <x, y> = -x_t y_t + x_s . y_s        L_K = { x : <x, x> = -K, x_t > 0 }

The inner product and the projection are geoopt's. Its exponential and logarithmic maps and its distance
are not used: norms below 1e-4 are raised to 1e-4 there, which leaves the manifold by 1e-7 relative at
K = 0.1 in any precision, and arccosh loses half of the digits near the origin, where features lie. Here
sinh(z) / z and asinh(z) / z have their series around 0, so that maps, and gradients, are exact there.

K always has a trailing dimension of size 1 and broadcasts against points: [1], [v, 1] or [k, 1, 1].
"""

import warnings

import torch
from torch import Tensor
from torch.nn import functional

with warnings.catch_warnings():  # geoopt compiles its functions in a way that torch 2.13 deprecates
    warnings.simplefilter("ignore", DeprecationWarning)
    from geoopt.manifolds.lorentz import math as lorentz

SMALL = 1e-2  # below it, in units of sqrt(K), the series are exact to float64
SMALLEST_SQUARE = 1e-16  # of a centroid's denominator, whose root is thus at least 1e-8


def lift(space: Tensor, k: Tensor) -> Tensor:
    """The point of L_K above space coordinates [..., d]: [..., 1 + d], time recomputed."""
    point: Tensor = lorentz.project(functional.pad(space, (1, 0)), k=k.squeeze(-1))
    return point


def inner(x: Tensor, y: Tensor) -> Tensor:
    """<x, y> of [..., 1 + d]: [..., 1]."""
    product: Tensor = lorentz.inner(x, y, keepdim=True)
    return product


def exp_factor(norm: Tensor, k: Tensor) -> Tensor:
    """What a tangent vector at the origin of length `norm` [..., 1] is multiplied by to give x_s."""
    return _sinhc(norm / k.sqrt())


def exp_origin(tangent: Tensor, k: Tensor) -> Tensor:
    """The exponential map at the origin: tangent space coordinates [..., d] -> point [..., 1 + d]."""
    norm = torch.linalg.vector_norm(tangent, dim=-1, keepdim=True)
    return lift(tangent * exp_factor(norm, k), k)


def log_origin(point: Tensor, k: Tensor) -> Tensor:
    """The logarithmic map at the origin: point [..., 1 + d] -> tangent space coordinates [..., d]."""
    space = point[..., 1:]
    norm = torch.linalg.vector_norm(space, dim=-1, keepdim=True)
    return space * _asinhc(norm / k.sqrt())


def squared_distances(x: Tensor, y: Tensor, k: Tensor) -> Tensor:
    """Squared Lorentz distances -2 K - 2 <x_i, y_j>: [..., n, 1 + d] and [..., m, 1 + d] -> [..., n, m].

    Rounding can make the distance of nearly equal points negative by x_t y_t times the precision, which
    is then 0.
    """
    flipped = torch.cat([-y[..., :1], y[..., 1:]], dim=-1)
    return (-2 * k - 2 * x @ flipped.transpose(-1, -2)).clamp_min(0)


def centroid(sums: Tensor, k: Tensor) -> Tensor:
    """The Lorentz centroid of points whose weighted sum is `sums` [..., 1 + d]; weights are positive.

    Law et al., "Lorentzian Distance Learning", ICML 2019, theorem 3.3. The square in the denominator
    cancels for sums of points far from the origin, so that the result is on L_K only roughly: lift it again.
    """
    square = inner(sums, sums).abs().clamp_min(SMALLEST_SQUARE)
    found: Tensor = k.sqrt() * sums / square.sqrt()
    return found


def within(vectors: Tensor, limit: float) -> Tensor:
    """Vectors [..., d] shortened to length `limit` where they are longer."""
    norm = torch.linalg.vector_norm(vectors, dim=-1, keepdim=True)
    short: Tensor = vectors * (limit / norm.clamp_min(limit))
    return short


def residual(points: Tensor, k: Tensor) -> Tensor:
    """How far points are from L_K: |<x, x> + K| / x_t^2, [..., 1], computed in float64."""
    exact = points.double()
    found: Tensor = (inner(exact, exact) + k.double()).abs() / exact[..., :1].square()
    return found


def _sinhc(z: Tensor) -> Tensor:
    near = z.abs() < SMALL
    away = torch.where(near, 1.0, z)
    square = torch.where(near, z, 0.0).square()
    return torch.where(near, 1 + square / 6 + square.square() / 120, torch.sinh(away) / away)


def _asinhc(z: Tensor) -> Tensor:
    near = z.abs() < SMALL
    away = torch.where(near, 1.0, z)
    square = torch.where(near, z, 0.0).square()
    series = 1 - square / 6 + 3 * square.square() / 40 - 5 * square**3 / 112
    return torch.where(near, series, torch.asinh(away) / away)
