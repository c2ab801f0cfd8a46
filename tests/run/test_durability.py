"""Durability and detector figures against counts made by hand."""

import pytest

from fedsim.run.durability import detector, durability, lifespan, milestones


def records(success, floor=None):
    """One record per round from 1; None: not measured."""
    found = []
    for place, value in enumerate(success):
        metrics = {"attack_success": value, "attack_floor": floor[place] if floor else None}
        found.append({"round": place + 1, "metrics": metrics})
    return found


def test_success_later_is_read_off_at_the_round():
    told = durability(records([place / 1000 for place in range(200)]), window=(1, 10))
    assert told["at_stop"] == 0.009
    assert (told["plus_25"], told["plus_50"], told["plus_100"]) == (0.034, 0.059, 0.109)
    assert told["auc50"] is None  # no floor was measured


def test_auc50_is_the_mean_over_the_stop_and_fifty_rounds_minus_the_floor_of_the_same_round():
    success = [0.0] * 9 + [0.8] * 51 + [0.0] * 40
    floor = [0.9] * 9 + [0.1 if place % 2 else 0.3 for place in range(51)] + [0.9] * 40
    told = durability(records(success, floor), window=(3, 10))
    floors = sum(0.1 if place % 2 else 0.3 for place in range(51)) / 51
    assert told["auc50"] == pytest.approx(0.8 - floors)
    assert told["floor"] == pytest.approx(floors)
    assert (told["auc_rounds"], told["floor_at_stop"]) == (51, 0.3)


def test_what_is_told_by_name_is_measured():
    told = durability(records([0.5] * 110), window=(3, 10))
    assert milestones((3, 10)) == {10, 35, 60, 110}
    assert None not in (told["at_stop"], told["plus_25"], told["plus_50"], told["plus_100"])


def test_a_run_that_ends_early_says_how_many_rounds_the_mean_covers():
    told = durability(records([1.0] * 15, [0.0] * 15), window=(1, 10))
    assert (told["auc50"], told["auc_rounds"], told["plus_25"]) == (1.0, 6, None)


@pytest.mark.parametrize(
    ("after_stop", "rounds", "alive"),
    [([0.4, 0.9], 0, False), ([0.9, 0.6, 0.49, 0.9], 2, False), ([0.9, 0.8, 0.5], 2, True)],
)
def test_lifespan_counts_from_the_stop_to_the_first_round_under_one_half(after_stop, rounds, alive):
    found = lifespan(records([0.0, 0.0, *after_stop]), window=(1, 3))
    assert (found["rounds"], found["still_alive"]) == (rounds, alive)


def test_a_single_dip_does_not_end_a_smoothed_life():
    found = lifespan(records([0.9, 0.9, 0.3, 0.9, 0.9, *[0.0] * 9]), window=(1, 1))
    assert found["rounds"] == 2
    assert found["smoothed"] == 6  # the mean of rounds 3 to 7, (0.3 + 0.9 + 0.9 + 0 + 0) / 5


def test_a_smoothed_life_that_outlasts_the_run_says_so():
    found = lifespan(records([0.9, 0.9, 0.3, 0.9]), window=(1, 1))
    assert (found["rounds"], found["still_alive"]) == (2, False)
    assert (found["smoothed"], found["smoothed_still_alive"]) == (3, True)


def test_lifespan_of_an_attack_without_success_measure():
    assert lifespan([{"round": 1, "metrics": {}}], (1, 1)) is None


def under_attack(true_positives, false_positives, false_negatives, true_negatives, kept):
    counts = {
        "true_positives": true_positives,
        "false_positives": false_positives,
        "false_negatives": false_negatives,
        "true_negatives": true_negatives,
    }
    return {"attack": {"detector": counts, "weight_kept": kept}}


def test_detector_scores_are_those_of_the_summed_counts():
    found = detector([{"attack": None}, {}, under_attack(2, 1, 0, 7, 0.0), under_attack(1, 0, 1, 8, 0.2)])
    assert found["precision"] == 3 / 4
    assert found["recall"] == 3 / 4
    assert found["f1"] == 3 / 4
    assert found["false_positive_rate"] == 1 / 16
    assert found["weight_kept"] == pytest.approx(0.1)


def test_a_rule_that_flags_nobody_has_no_precision():
    found = detector([under_attack(0, 0, 3, 7, 0.3)])
    assert found["precision"] is None
    assert (found["recall"], found["f1"]) == (0, 0)


def test_a_rule_that_weighs_nobody_is_no_detector():
    assert detector([{"attack": {"detector": None, "weight_kept": None}}]) is None


def test_where_nobody_was_hostile_only_false_alarms_count():
    found = detector([under_attack(0, 3, 0, 7, None)])
    assert (found["precision"], found["recall"], found["f1"], found["weight_kept"]) == (None,) * 4
    assert found["false_positive_rate"] == 0.3
