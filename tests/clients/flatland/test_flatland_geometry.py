"""Laws of the hyperboloid, and every map against mpmath with 60 digits."""

import mpmath
import pytest
import torch

from clients.flatland.geometry import (
    centroid,
    exp_factor,
    exp_origin,
    inner,
    lift,
    log_origin,
    lorentz,
    residual,
    squared_distances,
    within,
)

mpmath.mp.dps = 60
EPSILON = {torch.float32: 2.0**-23, torch.float64: 2.0**-52}
DTYPES = list(EPSILON)
RADII = [0.1, 0.7, 1.0, 10.0]  # K
LENGTHS = [0.0, 1e-30, 1e-9, 1e-4, 9.9e-3, 1.01e-2, 0.3, 1.0, 3.0]
D = 5


def vectors(length, dtype, count=4, seed=0):
    """[count, D] of the given length."""
    generator = torch.Generator().manual_seed(seed)
    raw = torch.randn(count, D, generator=generator, dtype=torch.float64)
    return (raw / raw.norm(dim=-1, keepdim=True) * length).to(dtype)


def radius(k, dtype):
    return torch.tensor([k], dtype=dtype)


def exactly(row):
    return [mpmath.mpf(float(value)) for value in row]


def length_of(row):
    return mpmath.sqrt(mpmath.fsum(value * value for value in row))


def exp_by_definition(row, k):
    norm = length_of(row)
    if norm == 0:
        return [mpmath.sqrt(k), *[mpmath.mpf(0)] * len(row)]
    factor = mpmath.sqrt(k) * mpmath.sinh(norm / mpmath.sqrt(k)) / norm
    return [mpmath.sqrt(k) * mpmath.cosh(norm / mpmath.sqrt(k)), *[factor * value for value in row]]


def lift_by_definition(row, k):
    return [mpmath.sqrt(mpmath.fsum(value * value for value in row) + k), *row]


def inner_by_definition(x, y):
    return -x[0] * y[0] + mpmath.fsum(a * b for a, b in zip(x[1:], y[1:], strict=True))


def close(found, expected, tolerance):
    """Coordinates of one point within `tolerance`, relative to the point's own size."""
    size = max(abs(value) for value in expected)
    for value, wanted in zip(found.tolist(), expected, strict=True):
        assert abs(mpmath.mpf(value) - wanted) <= tolerance * size + mpmath.mpf(10) ** -300


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("k", RADII)
@pytest.mark.parametrize("length", LENGTHS)
def test_exp_at_the_origin(dtype, k, length):
    tangent, exact_k = vectors(length, dtype), mpmath.mpf(float(radius(k, dtype)))
    points = exp_origin(tangent, radius(k, dtype))
    stretch = 1 + length / k**0.5  # sinh amplifies a relative error of z by up to 1 + z
    for found, row in zip(points, tangent, strict=True):
        close(found, exp_by_definition(exactly(row), exact_k), 8 * stretch * EPSILON[dtype])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("k", RADII)
@pytest.mark.parametrize("length", LENGTHS)
def test_log_inverts_exp_and_exp_inverts_log(dtype, k, length):
    tangent, here = vectors(length, dtype), radius(k, dtype)
    back = log_origin(exp_origin(tangent, here), here)
    tolerance = 16 * (1 + length / k**0.5) * EPSILON[dtype]
    torch.testing.assert_close(back, tangent, rtol=0, atol=tolerance * length)
    points = lift(tangent, here)
    again = exp_origin(log_origin(points, here), here)
    torch.testing.assert_close(again, points, rtol=0, atol=tolerance * float(points.abs().max()))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("k", RADII)
@pytest.mark.parametrize("length", [*LENGTHS, 50.0, 1e4])
def test_log_at_the_origin(dtype, k, length):
    points = lift(vectors(length, dtype), radius(k, dtype))
    root = mpmath.sqrt(mpmath.mpf(float(radius(k, dtype))))
    for found, row in zip(log_origin(points, radius(k, dtype)), points, strict=True):
        space = exactly(row[1:])
        norm = length_of(space)
        factor = mpmath.mpf(1) if norm == 0 else root * mpmath.asinh(norm / root) / norm
        close(found, [factor * value for value in space], 8 * EPSILON[dtype])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("k", RADII)
@pytest.mark.parametrize("length", [*LENGTHS, 50.0, 1e4])
def test_lifted_points_are_on_the_manifold(dtype, k, length):
    points = lift(vectors(length, dtype), radius(k, dtype))
    assert (points[:, 0] > 0).all()
    assert residual(points, radius(k, dtype)).max() < 4 * EPSILON[dtype]
    exact_k = mpmath.mpf(float(radius(k, dtype)))
    for row in points:
        close(row, lift_by_definition(exactly(row[1:]), exact_k), 4 * EPSILON[dtype])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("k", RADII)
@pytest.mark.parametrize(("far", "near"), [(0.0, 0.0), (1e-4, 1e-4), (1.0, 0.3), (5.0, 5.0), (1e3, 1.0)])
def test_squared_distances(dtype, k, far, near):
    x = lift(vectors(far, dtype), radius(k, dtype))
    y = lift(vectors(near, dtype, count=3, seed=1), radius(k, dtype))
    found = squared_distances(x, y, radius(k, dtype))
    assert found.shape == (4, 3)
    assert (found >= 0).all()
    rounding = 16 * EPSILON[dtype] * float(x[0, 0] * y[0, 0])
    torch.testing.assert_close(squared_distances(y, x, radius(k, dtype)).T, found, rtol=0, atol=rounding)
    exact_k = mpmath.mpf(float(radius(k, dtype)))
    for i, row in enumerate(x):
        for j, column in enumerate(y):
            a, b = (lift_by_definition(exactly(p[1:]), exact_k) for p in (row, column))
            wanted = -2 * exact_k - 2 * inner_by_definition(a, b)
            assert abs(mpmath.mpf(float(found[i, j])) - wanted) <= rounding
            if float(wanted) > 0.01 * float(row[0] * column[0]):  # geoopt's own, where it is accurate
                geodesic = lorentz.dist(row, column, k=radius(k, dtype).squeeze())
                chord = 2 * k**0.5 * torch.sinh(geodesic / (2 * k**0.5))
                torch.testing.assert_close(chord.square(), found[i, j], rtol=1e-3, atol=1e-5)


def test_a_point_has_no_distance_from_itself():
    for dtype in DTYPES:
        for k in RADII:
            x = lift(vectors(1.0, dtype), radius(k, dtype))
            assert squared_distances(x, x, radius(k, dtype)).diagonal().max() <= 16 * EPSILON[dtype] * (1 + k)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("k", RADII)
@pytest.mark.parametrize("length", [0.0, 1e-3, 1.0, 5.0])
def test_the_centroid_follows_its_formula_and_lies_on_the_manifold(dtype, k, length):
    points = lift(vectors(length, dtype, count=6), radius(k, dtype))
    weights = torch.linspace(0.2, 1.3, 6, dtype=dtype)
    sums = (weights.unsqueeze(1) * points).sum(dim=0, keepdim=True)
    found = centroid(sums, radius(k, dtype))
    row, exact_k = exactly(sums[0]), mpmath.mpf(float(radius(k, dtype)))
    root = mpmath.sqrt(exact_k / abs(inner_by_definition(row, row)))
    blown = float(sums[0, 0] ** 2 / inner(sums, sums).abs())  # how much the denominator cancels
    close(found[0], [root * value for value in row], 8 * blown * EPSILON[dtype])
    assert residual(found, radius(k, dtype)).max() < 8 * EPSILON[dtype]


def test_the_centroid_minimises_the_weighted_squared_distance():
    k = radius(0.7, torch.float64)
    points, weights = lift(vectors(2.0, torch.float64, 6), k), torch.linspace(0.2, 1.3, 6).double()
    best = centroid((weights.unsqueeze(1) * points).sum(dim=0, keepdim=True), k)

    def cost(point):
        return float((weights * squared_distances(point, points, k)[0]).sum())

    for seed in range(20):
        moved = lift(best[:, 1:] + 1e-3 * vectors(1.0, torch.float64, 1, seed), k)
        assert cost(moved) > cost(best)


def lorentz_transformation(dtype, seed, rapidity):
    """A rotation of space, then a boost along the first axis: [1 + D, 1 + D] with its inverse."""
    generator = torch.Generator().manual_seed(seed)
    turn = torch.linalg.qr(torch.randn(D, D, generator=generator, dtype=torch.float64))[0]
    rotation, boost = torch.eye(1 + D, dtype=torch.float64), torch.eye(1 + D, dtype=torch.float64)
    rotation[1:, 1:] = turn
    cosh, sinh = torch.tensor(rapidity).double().cosh(), torch.tensor(rapidity).double().sinh()
    boost[:2, :2] = torch.stack([torch.stack([cosh, sinh]), torch.stack([sinh, cosh])])
    return (boost @ rotation).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("k", RADII)
@pytest.mark.parametrize("rapidity", [0.0, 0.5, 2.0])
def test_lorentz_transformations_keep_distances_and_carry_centroids_along(dtype, k, rapidity):
    here, move = radius(k, dtype), lorentz_transformation(dtype, 3, rapidity)
    x = lift(vectors(1.0, dtype), here)
    moved = x @ move.T
    size = float(moved.abs().max()) ** 2
    torch.testing.assert_close(
        squared_distances(moved, moved, here),
        squared_distances(x, x, here),
        rtol=0,
        atol=64 * size * EPSILON[dtype],
    )
    sums = x.sum(dim=0, keepdim=True)
    torch.testing.assert_close(
        centroid(sums @ move.T, here),
        centroid(sums, here) @ move.T,
        rtol=0,
        atol=64 * size / k * EPSILON[dtype] * float(moved.abs().max()),
    )


@pytest.mark.parametrize("k", RADII)
@pytest.mark.parametrize("length", [0.0, 1e-9, 1e-3, 9.99e-3, 0.5, 3.0])
def test_gradients_follow_finite_differences_of_60_digits(k, length):
    """Of <w, exp(v)> in v and K, at the origin, on both sides of the series, and far out."""
    v = vectors(length, torch.float64, 1)[0].requires_grad_()
    here = radius(k, torch.float64).requires_grad_()
    weights = torch.linspace(-1.0, 1.0, D + 1, dtype=torch.float64)
    by_v, by_k = torch.autograd.grad((weights * exp_origin(v, here)).sum(), (v, here))

    def value(row, radius_):
        return mpmath.fsum(
            mpmath.mpf(float(w)) * p for w, p in zip(weights, exp_by_definition(row, radius_), strict=True)
        )

    row, exact_k, step = exactly(v.detach()), mpmath.mpf(k), mpmath.mpf(10) ** -25
    scale = max(1.0, float(by_v.abs().max()))
    for i in range(D):
        up, down = list(row), list(row)
        up[i], down[i] = row[i] + step, row[i] - step
        slope = (value(up, exact_k) - value(down, exact_k)) / (2 * step)
        assert abs(slope - mpmath.mpf(float(by_v[i]))) < 1e-11 * scale
    slope = (value(row, exact_k + step) - value(row, exact_k - step)) / (2 * step)
    assert abs(slope - mpmath.mpf(float(by_k))) < 1e-11 * max(1.0, abs(float(by_k)))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("k", RADII)
@pytest.mark.parametrize("length", [0.0, 1e-30, 1e-2, 5.0, 1e4])
def test_gradients_are_finite_everywhere(dtype, k, length):
    raw, here = vectors(length, dtype, 4).requires_grad_(), radius(k, dtype).requires_grad_()
    points = lift(within(raw, 5.0), here)
    center = centroid(points.sum(dim=0, keepdim=True), here)
    total = log_origin(points, here).sum() + squared_distances(points, center, here).sum()
    total = total + exp_origin(within(raw, 3.0), here).sum() + center.sum()
    for gradient in torch.autograd.grad(total, (raw, here)):
        assert torch.isfinite(gradient).all()


def test_the_limits_shorten_and_leave_short_vectors_alone():
    rows = torch.tensor([[3.0, 4.0], [0.3, 0.4], [0.0, 0.0], [300.0, 400.0]])
    torch.testing.assert_close(within(rows, 5.0), torch.tensor([[3.0, 4.0], [0.3, 0.4], [0, 0], [3.0, 4.0]]))


def test_radii_differ_from_client_to_client():
    """[k, 1, 1] against [k, v, d], as in a stack of clients."""
    radii = torch.tensor([0.1, 2.0]).view(2, 1, 1)
    tangent = vectors(1.0, torch.float32).expand(2, 4, D)
    both = exp_origin(tangent, radii)
    for client in range(2):
        torch.testing.assert_close(
            both[client], exp_origin(tangent[client], radii[client]), rtol=1e-6, atol=0
        )
    assert exp_factor(torch.zeros(1), torch.ones(1)) == 1.0


def test_the_residual_shows_points_whose_time_is_stale():
    """Else the check of the manifold could not fail: K moved, or a map whose time was not recomputed."""
    for dtype, bound in ((torch.float32, 1e-5), (torch.float64, 1e-13)):
        k = radius(1.0, dtype)
        points = lift(vectors(2.0, dtype), k)
        assert residual(points, k).max() < bound
        assert residual(points, 1.001 * k).max() > bound
        mapped = torch.cat([points[:, :1], points[:, 1:] * 1.01], dim=-1)
        assert residual(mapped, k).max() > bound
        assert residual(lift(mapped[:, 1:], k), k).max() < bound
