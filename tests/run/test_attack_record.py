"""One round under attack: who counts as flagged, when a rule did nothing, how the rows stood out."""

import pytest
import torch

from fedsim.contracts import Cohort, Decision
from fedsim.params import Layout
from fedsim.run.attack_record import LIVE, attack_record, detector_counts, differs_from_mean

ROWS = torch.tensor([[1.0, 0.0], [0.0, 2.0], [3.0, 4.0], [-6.0, -8.0]])


def cohort(examples=(10, 20, 30, 40)):
    return Cohort(
        round=5,
        partitions=(2, 3, 5, 7),
        updates=ROWS,
        examples=torch.tensor(examples),
        layout=Layout.of({"w": torch.zeros(2)}),
    )


def counts(weights, malicious=(3,)):
    found = detector_counts(cohort(), list(malicious), torch.tensor(weights, dtype=torch.float64))
    return tuple(found.values())


def test_a_rejected_client_is_flagged_and_a_kept_one_is_not():
    assert counts([1 / 3, 1 / 3, 1 / 3, 0.0]) == (1, 0, 0, 3)
    assert counts([0.0, 0.0, 0.0, 1.0]) == (0, 3, 1, 0)


@pytest.mark.parametrize("weights", [[0.1, 0.2, 0.3, 0.4], [0.25] * 4, [10.0, 20.0, 30.0, 40.0]])
def test_plain_means_flag_nobody(weights):
    assert counts(weights) == (0, 0, 1, 3)


def test_half_of_the_smaller_usual_share_is_the_border():
    # Shares by examples .1 .2 .3 .4, even .25: borders .05, .1, .125, .125.
    assert counts([0.049, 0.101, 0.124, 0.726], malicious=(0, 2)) == (2, 0, 0, 2)


def test_only_shares_matter_so_that_shortening_everybody_flags_nobody():
    assert counts([0.01, 0.01, 0.01, 0.01]) == (0, 0, 1, 3)
    assert counts([0.03, 0.03, 0.03, 0.01]) == (1, 0, 0, 3)


def test_a_rule_that_trusts_nobody_flags_everybody():
    assert counts([0.0, 0.0, 0.0, 0.0]) == (1, 3, 0, 0)


def test_without_weights_there_is_no_detector():
    assert detector_counts(cohort(), [3], None) is None


@pytest.mark.parametrize("shares", [[0.1, 0.2, 0.3, 0.4], [0.25] * 4])
def test_both_plain_means_count_as_doing_nothing(shares):
    mean = torch.tensor(shares) @ ROWS
    assert differs_from_mean(cohort(), mean) < LIVE
    assert differs_from_mean(cohort(), mean * (1 + 1e-4)) > LIVE
    assert differs_from_mean(cohort(), ROWS.median(dim=0).values) > LIVE


def test_norms_and_cosine_by_hand():
    found = attack_record(cohort(), [3], Decision(update=torch.zeros(2)))
    assert found["malicious"] == [7]
    assert found["malicious_norm"] == 10
    assert found["benign_norm"] == pytest.approx((1 + 2 + 5) / 3)
    mean = torch.tensor([4 / 3, 2.0])
    cosine = float(torch.tensor([-0.6, -0.8]) @ mean / mean.norm())
    assert found["cosine_to_benign"] == pytest.approx(cosine, abs=1e-6)


def test_weight_kept_is_a_share_of_the_rule_s_whole_weight():
    weights = torch.tensor([1.0, 1.0, 1.0, 1.0]) / 8  # a clipping rule shortens everybody
    assert attack_record(cohort(), [0, 3], Decision(update=torch.zeros(2), weights=weights))[
        "weight_kept"
    ] == pytest.approx(0.5)


def test_a_cohort_of_malicious_clients_alone_has_no_benign_side():
    found = attack_record(cohort(), [0, 1, 2, 3], Decision(update=torch.zeros(2)))
    assert found["benign_norm"] is None
    assert found["cosine_to_benign"] is None


def test_a_mean_that_a_server_optimiser_moved_on_is_still_a_mean():
    mean = ROWS.mean(dim=0)
    plain = attack_record(cohort(), [3], Decision(update=3 * mean, aggregate=mean))
    assert plain["differs_from_mean"] < LIVE
    robust = attack_record(cohort(), [3], Decision(update=mean, aggregate=3 * mean))
    assert robust["differs_from_mean"] > LIVE
