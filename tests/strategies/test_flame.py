import numpy as np
import pytest
import torch
from scipy.cluster.hierarchy import linkage
from scipy.spatial.distance import pdist

from strategies.clusters import apart, density_clusters
from strategies.flame import Flame


def first_majority(vectors):
    """Who is joined first into a group of more than half, when groups are joined by single linkage.

    With one neighbour in the core distance, HDBSCAN's mutual reachability is the distance itself; a cluster
    of more than half of the points never splits in two, so that its points are those of the last such group.
    """
    n = len(vectors)
    groups = {i: {i} for i in range(n)}
    for step, (one, other, _, _) in enumerate(linkage(pdist(vectors, "cosine"), "single")):
        groups[n + step] = groups[int(one)] | groups[int(other)]
        if len(groups[n + step]) > n // 2:
            return groups[n + step]
    raise AssertionError


def by_algorithm_1(updates, model, angles):
    """Lines 6 to 14 without noise."""
    vectors = updates + model if angles == "models" else updates
    inside = sorted(first_majority(vectors))
    lengths = np.linalg.norm(updates, axis=1)
    bound = np.median(lengths)
    return inside, sum(updates[i] * min(1.0, bound / lengths[i]) for i in inside) / len(inside)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-10)])
@pytest.mark.parametrize("angles", ["models", "updates"])
@pytest.mark.parametrize("n", [3, 4, 7, 20, 51])
def test_update_follows_algorithm_1(n, angles, dtype, tolerance, normal, cohort_of, server_of):
    updates = normal(n, 12, dtype, seed=n) + 0.7
    server = server_of(12, dtype)
    _, decision = Flame(noise=0.0, angles=angles).step({}, cohort_of(updates), server)
    inside, wanted = by_algorithm_1(updates.double().numpy(), server.model.double().numpy(), angles)
    assert [place for place, weight in enumerate(decision.weights.tolist()) if weight] == inside
    torch.testing.assert_close(
        decision.update, torch.from_numpy(wanted).to(dtype), rtol=tolerance, atol=tolerance
    )


def test_clients_that_point_elsewhere_are_refused(normal, cohort_of, server_of):
    updates = 1 + 0.05 * normal(10, 30)
    updates[:3] = 0.05 * normal(3, 30, seed=1)
    updates[:3, 0] += 5
    _, decision = Flame(noise=0.0, angles="updates").step({}, cohort_of(updates), server_of(30))
    assert decision.weights[:3].tolist() == [0, 0, 0]


def test_the_bound_is_the_median_of_all_lengths_and_not_of_the_admitted_ones(cohort_of, server_of):
    lengths = torch.tensor([8.0, 9.0, 10.0, 1.0, 1.0], dtype=torch.float64)
    updates = torch.ones(5, 2, dtype=torch.float64) / 2**0.5
    updates[3:] = torch.tensor([[1.0, -1.0], [-1.0, 1.0]]) / 2**0.5
    updates *= lengths[:, None]
    _, decision = Flame(noise=0.0, angles="updates").step({}, cohort_of(updates), server_of(2))
    assert decision.weights[3:].tolist() == [0, 0]
    assert decision.update.norm().item() == pytest.approx(8.0)  # the admitted ones alone would give 26 / 3


def test_noise_is_lambda_times_the_bound(normal, cohort_of, server_of):
    updates = normal(5, 20_000) + 1
    quiet, loud = (
        Flame(noise=noise).step({}, cohort_of(updates), server_of(20_000))[1].update for noise in (0.0, 0.01)
    )
    bound = updates.norm(dim=1).median()
    assert (loud - quiet).std().item() == pytest.approx(0.01 * bound.item(), rel=0.03)


def test_tiny_steps_from_a_large_model_are_still_told_apart(normal, cohort_of, server_of):
    """Cosines of the models differ in the 13th digit only."""
    updates = 1e-6 * (torch.linspace(1, -1, 41).double() + 0.1 * normal(9, 41))
    updates[:2] = -1e-6 * torch.linspace(1, 0, 41)
    _, decision = Flame(noise=0.0).step({}, cohort_of(updates), server_of(41))
    assert decision.weights[:2].tolist() == [0, 0]


def test_clusters_of_planted_groups(normal):
    points = torch.cat([normal(6, 2) * 0.1, normal(5, 2) * 0.1 + 10, torch.tensor([[100.0, -100.0]])])
    labels = density_clusters(torch.cdist(points, points), smallest=3, neighbours=2)
    assert len(set(labels[:6])) == len(set(labels[6:11])) == 1
    assert labels[0] != labels[6]
    assert labels[11] == -1
    together = 1 - apart(labels)
    assert together[11].tolist() == [0] * 11 + [1]
    assert together[0].tolist() == [1] * 6 + [0] * 6


def test_coinciding_points_form_a_cluster():
    assert density_clusters(torch.zeros(5, 5), smallest=3, neighbours=1, single=True) == [0] * 5
