import math

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from strategies.geometric_median import GeometricMedian, smoothed_weiszfeld


def objective(point, vectors, masses):
    return math.fsum(mass * math.dist(point, vector) for mass, vector in zip(masses, vectors, strict=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("n", [3, 4, 8, 15])
def test_no_other_minimiser_does_better(n, dtype, normal, cohort_of, server_of):
    updates, examples = normal(n, 4, dtype, seed=n), [1 + 3 * (k % 4) for k in range(n)]
    vectors, masses = updates.double().tolist(), np.array(examples) / sum(examples)
    best = minimize(
        objective,
        np.mean(vectors, axis=0),
        (vectors, masses),
        method="Nelder-Mead",
        options={"xatol": 1e-10, "fatol": 1e-12, "maxiter": 10_000, "maxfev": 10_000},
    )
    rule = GeometricMedian(tolerance=1e-12, iterations=2000)
    _, decision = rule.step({}, cohort_of(updates, examples), server_of(4))
    assert objective(decision.update.tolist(), vectors, masses) <= best.fun * (1 + 1e-6)
    torch.testing.assert_close(decision.update.double(), torch.from_numpy(best.x), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("iterations", [1, 2, 5])
def test_steps_follow_algorithm_2(iterations, normal):
    updates, masses = normal(6, 3), [0.1, 0.3, 0.2, 0.1, 0.2, 0.1]
    vectors = updates.tolist()
    point = [math.fsum(m * v[j] for m, v in zip(masses, vectors, strict=True)) for j in range(3)]
    for _ in range(iterations):
        pulls = [m / max(0.5, math.dist(point, v)) for m, v in zip(masses, vectors, strict=True)]
        point = [
            math.fsum(p * v[j] for p, v in zip(pulls, vectors, strict=True)) / sum(pulls) for j in range(3)
        ]
    found, shares = smoothed_weiszfeld(
        updates, torch.tensor(masses).double(), iterations=iterations, smoothing=0.5, tolerance=0.0
    )
    assert found.tolist() == pytest.approx(point, rel=1e-6)
    assert shares.tolist() == pytest.approx([pull / sum(pulls) for pull in pulls], rel=1e-6)


def test_on_a_line_it_is_the_median():
    updates = torch.tensor([[0.0], [1.0], [2.0], [10.0], [1000.0]], dtype=torch.float64)
    found, _ = smoothed_weiszfeld(
        updates, torch.full((5,), 0.2).double(), iterations=500, smoothing=1e-6, tolerance=0.0
    )
    assert found.item() == pytest.approx(2.0, abs=1e-4)


def test_a_client_with_most_of_the_mass_decides(normal, cohort_of, server_of):
    updates = normal(5, 3)
    _, decision = GeometricMedian().step({}, cohort_of(updates, [1, 1, 100, 1, 1]), server_of(3))
    torch.testing.assert_close(decision.update, updates[2], rtol=1e-4, atol=1e-4)
    _, alike = GeometricMedian(weighted=False).step({}, cohort_of(updates, [1, 1, 100, 1, 1]), server_of(3))
    assert alike.weights[2] < 0.5


@pytest.mark.parametrize("far", [1e3, 1e9, 1e15])
def test_however_far_a_minority_goes_it_keeps_no_influence(far, normal, cohort_of, server_of):
    updates = normal(9, 3)
    updates[:3] = far
    _, decision = GeometricMedian(weighted=False).step({}, cohort_of(updates), server_of(3))
    assert decision.update.norm() < 5
