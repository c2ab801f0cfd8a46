import numpy as np
import pytest

from fedsim.data.split import apportion, stratified

SHARES = np.array([0.8, 0.1, 0.1])


@pytest.mark.parametrize("total", [0, 1, 2, 3, 7, 10, 30, 99, 1000])
@pytest.mark.parametrize("shares", [SHARES, np.array([0.2, 0.4, 0.4]), np.array([1.0, 0.0, 3.0, 2.5])])
def test_parts_sum_up_and_lie_within_one_of_their_share(total, shares):
    sizes = apportion(total, shares)
    assert sizes.sum() == total
    assert (np.abs(sizes - total * shares / shares.sum()) < 1.0).all()


def test_whole_shares_are_exact():
    assert apportion(30, SHARES).tolist() == [24, 3, 3]
    assert apportion(10, np.array([0.2, 0.4, 0.4])).tolist() == [2, 4, 4]


def test_a_spare_example_goes_to_training_then_to_testing():
    assert apportion(1, SHARES).tolist() == [1, 0, 0]
    assert apportion(4, SHARES).tolist() == [3, 0, 1]
    assert apportion(5, SHARES).tolist() == [4, 0, 1]
    assert apportion(3, np.ones(2)).tolist() == [2, 1]


@pytest.mark.parametrize("seed", range(10))
def test_roles_are_exact_disjoint_and_stratified(seed):
    rng = np.random.default_rng(seed)
    labels = rng.integers(7, size=int(rng.integers(1, 500)))
    sizes = apportion(len(labels), SHARES)
    roles = stratified(labels, sizes, rng)
    assert [len(role) for role in roles] == sizes.tolist()
    assert np.array_equal(np.sort(np.concatenate(roles)), np.arange(len(labels)))
    for role, share in zip(roles, SHARES, strict=True):
        counts = np.bincount(labels[role], minlength=7)
        assert (np.abs(counts - share * np.bincount(labels, minlength=7)) <= 2.0 + 1e-9).all()


def test_every_item_can_get_every_role():
    labels = np.arange(10) % 2
    tested = set()
    for seed in range(60):
        tested |= set(stratified(labels, np.array([8, 1, 1]), np.random.default_rng(seed))[2].tolist())
    assert tested == set(range(10))
