import math
from dataclasses import replace

import pytest
import torch

from fedsim.errors import RoundError
from strategies.deepsight import (
    DeepSight,
    division_differences,
    exceedings,
    refused,
    update_energies,
)
from strategies.layers import output_layer

HEAD_WEIGHT, HEAD_BIAS = 16, 36  # where they begin among the 41 columns: 5 outputs of 4 weights and a bias


def energies_by_definition(updates):
    rows = []
    for update in updates.double().tolist():
        energy = [
            abs(update[HEAD_BIAS + i]) + sum(abs(update[HEAD_WEIGHT + 4 * i + h]) for h in range(4))
            for i in range(5)
        ]
        rows.append([value**2 / sum(e**2 for e in energy) for value in energy])
    return rows


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_update_energies_and_exceedings_follow_their_definitions(dtype, normal, layout):
    updates = normal(6, 41, dtype)
    updates[0, HEAD_WEIGHT:HEAD_BIAS] *= 1e-2
    wanted = energies_by_definition(updates)
    found = update_energies(updates, output_layer(layout))
    torch.testing.assert_close(found, torch.tensor(wanted, dtype=torch.float64), rtol=1e-12, atol=1e-12)
    counts = [sum(value > max(0.01, 1 / 5) * max(row) for value in row) for row in wanted]
    assert exceedings(found).tolist() == counts


def test_a_client_that_changed_nothing_has_no_energy(layout):
    found = update_energies(torch.zeros(2, 41), output_layer(layout))
    assert found.tolist() == [[0] * 5] * 2
    assert exceedings(found).tolist() == [0, 0]


def test_division_differences_follow_their_definition(normal, cohort_of, server_of, monkeypatch):
    monkeypatch.setattr("strategies.deepsight.INPUTS_AT_ONCE", 4)
    cohort, server = cohort_of(normal(3, 41)), server_of(41)
    found = division_differences(cohort, server, samples=10)
    again = server_of(41)
    inputs = [row for size in (4, 4, 2) for row in torch.rand(size, 3, generator=again.rng)]
    for k, update in enumerate(cohort.updates):
        wanted = [0.0] * 5
        for x in inputs:
            after, before = (
                [math.exp(value) for value in again.predict(vector, x[None].double())[0].tolist()]
                for vector in (server.model + update, server.model)
            )
            wanted = [
                total + a / sum(after) / (b / sum(before)) / 10
                for total, a, b in zip(wanted, after, before, strict=True)
            ]
        assert found[k].tolist() == pytest.approx(wanted, rel=1e-10)


def test_probabilities_that_round_to_zero_do_not_divide_by_it(cohort_of, server_of, normal):
    updates = normal(4, 41, torch.float32)
    updates[0, HEAD_BIAS] = 1e6
    server = server_of(41, torch.float32)
    server.model[HEAD_BIAS] = -1e6
    found = division_differences(cohort_of(updates), server, samples=3)
    assert bool(found.isfinite().all())
    _, decision = DeepSight(samples=3).step({}, cohort_of(updates), server)
    assert bool(decision.update.isfinite().all())


@pytest.mark.parametrize(
    ("labels", "suspicious", "wanted"),
    [
        ([0, 0, 0, 1, 1], [1, 0, 0, 0, 0], [1, 1, 1, 0, 0]),  # exactly a third: refused
        ([0, 0, 0, 0, 1], [1, 0, 0, 0, 1], [0, 0, 0, 0, 1]),
        ([-1, -1, 0, 0, 0], [1, 0, 0, 0, 0], [1, 0, 0, 0, 0]),  # in no cluster: each for itself
    ],
)
def test_groups_with_a_third_of_suspicious_clients_are_refused(labels, suspicious, wanted):
    found = refused(labels, [bool(value) for value in suspicious], 1 / 3)
    assert found == [bool(value) for value in wanted]


def planted(normal):
    """Seven clients that learn all classes, and three whose training pushes one class alone."""
    updates = 0.05 * normal(10, 41)
    updates[3:, HEAD_WEIGHT:] += 0.3
    updates[:3, HEAD_WEIGHT : HEAD_WEIGHT + 4] += 3.0
    updates[:3, HEAD_BIAS] += 3.0
    return updates


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_clients_that_train_one_class_are_refused_and_the_rest_is_clipped_to_the_median(
    dtype, normal, cohort_of, server_of
):
    updates = planted(normal).to(dtype)
    updates[5] *= 1.5
    rule = DeepSight(samples=200, smallest_cluster=3)
    _, decision = rule.step({}, cohort_of(updates), server_of(41, dtype))
    assert decision.weights[:3].tolist() == [0, 0, 0]
    lengths = [math.hypot(*row[:12], *row[16:]) for row in updates.tolist()]  # no BatchNorm statistics
    bound = sum(sorted(lengths)[4:6]) / 2
    wanted = [0.0] * 3 + [min(1, bound / length) / 7 for length in lengths[3:]]
    assert decision.weights.tolist() == pytest.approx(wanted, rel=1e-6)


def test_if_every_group_is_refused_the_model_stays(normal, cohort_of, server_of):
    updates = torch.zeros(6, 41)
    updates[:, 0] = normal(1, 6)[0]  # the output layer never changes: nobody exceeds a threshold
    _, decision = DeepSight(samples=5).step({}, cohort_of(updates), server_of(41))
    assert decision.weights.tolist() == [0] * 6
    assert not bool(decision.update.any())


def test_data_that_are_not_rows(normal, cohort_of, server_of):
    server = replace(server_of(41), predict=None)
    with pytest.raises(RoundError, match=r"cannot do so with graphs: choose another strategy\.kind"):
        DeepSight(samples=5).step({}, cohort_of(normal(5, 41)), server)
