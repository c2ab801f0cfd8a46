import numpy as np
import pytest

from fedsim.data.partition import (
    Dirichlet,
    Iid,
    Natural,
    PerDataset,
    Quantity,
    Shards,
    dirichlet,
    packed,
)
from fedsim.data.pool import Items
from fedsim.errors import ConfigError, DataError

PARTITIONS = [
    Iid(),
    Dirichlet(alpha=0.1, min_samples=1),
    Dirichlet(alpha=0.5),
    Dirichlet(alpha=1e6),
    Shards(),
    Shards(shards_per_client=3),
    Quantity(),
    Quantity(alpha=0.01, min_samples=1),
]


def rng(seed):
    return np.random.default_rng(seed)


@pytest.mark.parametrize("partition", PARTITIONS, ids=repr)
@pytest.mark.parametrize(("size", "clients"), [(500, 7), (1013, 20), (333, 1)])
@pytest.mark.parametrize("seed", range(3))
def test_every_item_is_assigned_exactly_once(items, partition, size, clients, seed):
    parts = partition.divide(items(size, 10), clients, rng(seed))
    assert len(parts) == clients
    assert min(len(part) for part in parts) >= 1
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(size))


@pytest.mark.parametrize("partition", PARTITIONS, ids=repr)
def test_the_generator_alone_decides(items, partition):
    first, again, other = (partition.divide(items(500, 10), 5, rng(seed)) for seed in (1, 1, 2))
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(first, other, strict=True))


@pytest.mark.parametrize("size", [20, 21, 39, 1000])
def test_iid_sizes_differ_by_at_most_one(items, size):
    sizes = [len(part) for part in Iid().divide(items(size, 3), 20, rng(0))]
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("alpha", [5e-324, 1e-300, 1e-9, 0.01, 1.0, 100.0, 1e9])
def test_no_alpha_divides_by_zero(alpha):
    for seed in range(50):
        shares = dirichlet(alpha, 10, rng(seed))
        assert shares.sum() == pytest.approx(1.0, abs=1e-12)
        assert (shares >= 0).all()


@pytest.mark.parametrize("alpha", [0.05, 0.5, 5.0])
def test_proportions_have_the_moments_of_a_dirichlet(alpha):
    draws = np.stack([dirichlet(alpha, 4, rng(seed)) for seed in range(4000)])
    variance = (1 / 4) * (3 / 4) / (4 * alpha + 1)
    assert draws.mean(axis=0) == pytest.approx(np.full(4, 1 / 4), abs=0.025)
    assert draws.var(axis=0) == pytest.approx(np.full(4, variance), rel=0.1)


def test_small_alpha_concentrates_classes(items):
    def classes_of_a_client(alpha):
        pool = items(5000, 10)
        parts = Dirichlet(alpha=alpha, min_samples=1).divide(pool, 10, rng(0))
        return np.mean([np.bincount(pool.labels[part], minlength=10).max() / len(part) for part in parts])

    assert classes_of_a_client(100.0) < 0.2 < 0.4 < classes_of_a_client(0.1)


@pytest.mark.parametrize("alpha", [0.0, -1.0, float("nan"), float("inf")])
def test_illegal_alpha_is_named(alpha):
    with pytest.raises(ConfigError, match=f"alpha must be above 0 .* found {alpha}"):
        Dirichlet(alpha=alpha)
    with pytest.raises(ConfigError, match="alpha must be above 0"):
        Quantity(alpha=alpha)


def test_an_impossible_dirichlet_ends_with_advice(items):
    with pytest.raises(DataError, match=r"dirichlet with alpha = 0\.001 .* at least 10 .*min_samples"):
        Dirichlet(alpha=0.001).divide(items(300, 2), 20, rng(0))


def test_top_up_reaches_the_minimum(items):
    parts = Dirichlet(alpha=0.001, top_up=True).divide(items(300, 2), 20, rng(0))
    assert min(len(part) for part in parts) == 10
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(300))


@pytest.mark.parametrize("partition", [Iid(), Dirichlet(alpha=1.0, min_samples=1), Quantity(min_samples=1)])
def test_fewer_items_than_clients_are_refused(items, partition):
    with pytest.raises(DataError, match="of 4 items to each of 5 clients"):
        partition.divide(items(4, 2), 5, rng(0))


def test_as_many_items_as_clients_suffice(items):
    for partition in (Iid(), Shards(shards_per_client=1), Quantity(min_samples=1)):
        assert [len(part) for part in partition.divide(items(5, 2), 5, rng(0))] == [1] * 5


def test_shards_hold_few_classes():
    labels = np.repeat(np.arange(10), 100)
    pool = Items(labels=labels, dataset=np.zeros(1000, dtype=np.int64))
    parts = Shards(shards_per_client=2).divide(pool, 50, rng(0))
    assert {len(part) for part in parts} == {20}
    assert max(len(np.unique(labels[part])) for part in parts) == 2


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Shards(shards_per_client=0), "shards_per_client must be at least 1, found 0"),
        (lambda: Dirichlet(alpha=1.0, min_samples=0), "min_samples must be at least 1, found 0"),
        (lambda: Quantity(min_samples=0), "min_samples must be at least 1, found 0"),
    ],
)
def test_illegal_counts_are_named(make, message):
    with pytest.raises(ConfigError, match=message):
        make()


def test_quantity_skew_grows_as_alpha_falls(items):
    def largest(alpha):
        return max(len(part) for part in Quantity(alpha=alpha).divide(items(2000, 10), 10, rng(3)))

    assert largest(1000.0) < 230 < 800 < largest(0.05)


def test_natural_keeps_ids_whole(items):
    ids = rng(0).integers(12, size=300)
    pool = items(300, 4, ids=ids)
    for client, part in enumerate(Natural().divide(pool, 12, rng(0))):
        assert set(ids[part]) == {client}
    grouped = Natural().divide(pool, 5, rng(0))
    owners = [set(ids[part]) for part in grouped]
    assert sum(len(owner) for owner in owners) == 12
    assert np.array_equal(np.sort(np.concatenate(grouped)), np.arange(300))
    assert max(map(len, grouped)) - min(map(len, grouped)) <= np.bincount(ids).max()


def test_natural_without_ids_or_with_too_few(items):
    with pytest.raises(DataError, match=r"data\.id_column"):
        Natural().divide(items(10, 2), 2, rng(0))
    with pytest.raises(DataError, match="found 2 ids for 3 clients"):
        Natural().divide(items(10, 2, ids=np.arange(10) % 2), 3, rng(0))


def test_per_dataset_keeps_sets_apart():
    dataset = np.repeat([0, 1, 2], [5, 8, 9])
    pool = Items(labels=np.zeros(22, dtype=np.int64), dataset=dataset)
    assert [len(part) for part in PerDataset().divide(pool, 3, rng(0))] == [5, 8, 9]
    parts = PerDataset().divide(pool, 6, rng(0))
    assert [set(dataset[part]) for part in parts] == [{0}, {0}, {1}, {1}, {2}, {2}]
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(22))
    with pytest.raises(DataError, match="multiple of 3, found 4"):
        PerDataset().divide(pool, 4, rng(0))


def test_packing_balances_whole_groups():
    sizes = [9, 7, 6, 5, 4, 1]
    groups = np.split(np.arange(32), np.cumsum(sizes)[:-1])
    parts = packed(groups, 3)
    assert sorted(len(part) for part in parts) == [10, 11, 11]
