import pytest

from fedsim.errors import RoundError
from fedsim.run.cohort import draw_cohort


@pytest.mark.parametrize("size", [1, 3, 10])
def test_every_round_has_the_declared_size_of_different_clients_in_order(size):
    for round_ in range(1, 30):
        cohort = draw_cohort(0, round_, 10, size)
        assert len(set(cohort)) == size
        assert list(cohort) == sorted(cohort)
        assert set(cohort) <= set(range(10))


def test_rounds_and_seeds_differ_and_repeat():
    cohorts = {(seed, r): draw_cohort(seed, r, 100, 10) for seed in range(3) for r in range(1, 4)}
    assert len(set(cohorts.values())) == len(cohorts)
    assert all(draw_cohort(seed, r, 100, 10) == cohort for (seed, r), cohort in cohorts.items())


def test_all_clients_are_drawn_about_equally():
    counts = [0] * 10
    for round_ in range(1, 1001):
        for partition in draw_cohort(1, round_, 10, 3):
            counts[partition] += 1
    assert all(230 < count < 370 for count in counts)  # 300 expected, deviation 14.5


def test_forced_clients_take_places_and_the_size_stays():
    for round_ in range(1, 20):
        cohort = draw_cohort(0, round_, 10, 4, forced=(2, 7))
        assert {2, 7} <= set(cohort)
        assert len(cohort) == 4


def test_the_others_are_those_of_the_plain_draw():
    plain, forced = draw_cohort(3, 5, 10, 4), draw_cohort(3, 5, 10, 4, forced=(0,))
    assert set(forced) - {0} <= set(plain)


@pytest.mark.parametrize(("size", "forced"), [(11, ()), (1, (0, 1))])
def test_impossible_cohorts(size, forced):
    with pytest.raises(RoundError, match="cannot hold"):
        draw_cohort(0, 1, 10, size, forced=forced)
