import math
from dataclasses import replace

import pytest
import torch

from fedsim.errors import RoundError
from strategies.fedadam import FedAdam
from strategies.fltrust import FLTrust, trust_weights


def by_equations(updates, trusted):
    """Equations (2) to (4): trust scores, normalised magnitudes, their weighted mean."""
    length, scores, cut = math.hypot(*trusted), [], []
    for row in updates:
        own = math.hypot(*row)
        inner = math.fsum(a * b for a, b in zip(row, trusted, strict=True))
        scores.append(max(0.0, inner / own / length))
        cut.append([length / own * value for value in row])
    return [
        math.fsum(s * row[j] for s, row in zip(scores, cut, strict=True)) / math.fsum(scores)
        for j in range(len(trusted))
    ]


@pytest.mark.parametrize(("dtype", "rel"), [(torch.float32, 1e-5), (torch.float64, 1e-12)])
def test_update_follows_the_equations(dtype, rel, normal, cohort_of, server_of):
    updates, trusted = normal(7, 5, dtype) + 0.5, normal(1, 5, dtype, seed=1)[0] + 0.5
    _, decision = FLTrust().step({}, cohort_of(updates), server_of(5, dtype, trusted))
    wanted = by_equations(updates.tolist(), trusted.tolist())
    assert decision.update.tolist() == pytest.approx(wanted, rel=rel, abs=rel)


def test_a_client_that_points_away_weighs_nothing_and_length_buys_nothing(normal):
    trusted = torch.ones(3, dtype=torch.float64)
    updates = torch.stack([trusted, -trusted, 1e6 * trusted, 0 * trusted])
    trust, stretch = trust_weights(updates, trusted)
    assert trust.tolist() == pytest.approx([0.5, 0, 0.5, 0])
    assert stretch.tolist() == pytest.approx([1, 1, 1e-6, 0])


def test_if_nobody_points_the_server_s_way_the_model_stays(cohort_of, server_of):
    updates, trusted = -torch.ones(3, 2), torch.ones(2)
    _, decision = FLTrust().step({}, cohort_of(updates), server_of(2, torch.float32, trusted))
    assert decision.update.tolist() == [0, 0]
    assert decision.weights.tolist() == [0, 0, 0]


def test_without_trusted_data_there_is_no_plain_mean(normal, cohort_of, server_of):
    with pytest.raises(RoundError, match=r"set federation\.trusted"):
        FLTrust().step({}, cohort_of(normal(3, 2)), server_of(2))


def test_a_trusted_update_of_length_0_is_refused(normal, cohort_of, server_of):
    with pytest.raises(RoundError, match="changed nothing, so that fltrust has no direction"):
        FLTrust().step({}, cohort_of(normal(3, 2)), server_of(2, trusted=torch.zeros(2)))


def test_the_platform_can_ask_whether_trusted_data_are_needed():
    assert FLTrust().needs_trusted
    assert FedAdam(learning_rate=1.0, rule=FLTrust()).needs_trusted
    assert not FedAdam(learning_rate=1.0).needs_trusted
    assert replace(FLTrust()) == FLTrust()


def test_short_updates_are_stretched_but_their_batch_norm_statistics_are_not(cohort_of, server_of, layout):
    updates = torch.full((3, layout.size), 0.01)
    updates[:, 12:16] = -0.5  # of variances near 1
    trusted = torch.full((layout.size,), 10.0)
    trusted[12:16] = 0.0
    _, decision = FLTrust().step({}, cohort_of(updates), server_of(layout.size, torch.float32, trusted))
    assert decision.weights.sum() > 10
    assert decision.update[12:16].tolist() == pytest.approx([-0.5] * 4)
    assert decision.update[0] > 0.1
