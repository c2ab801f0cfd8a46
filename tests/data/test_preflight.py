import torch

from fedsim.contracts import ClientData, DataSpec, FederatedData
from fedsim.data.digits import Digits
from fedsim.data.examples import Rows
from fedsim.data.federate import federate
from fedsim.data.graph_partition import Metis, MetisOverlap
from fedsim.data.partition import Iid
from fedsim.data.preflight import empty_splits, label_histogram, leakage, memory_bytes, preflight, sizes

CLEAN = {"shared_in_client": 0, "shared_with_server": 0}


def by_hand(train, val, test, server, y=None):
    """One client over the rows of one pool, given as positions."""
    x, y = torch.arange(20.0)[:, None], torch.arange(20) % 2 if y is None else y
    part = [Rows(x, y).part(*bounds) for bounds in (train, val, test, server)]
    spec = DataSpec("rows", (1,), 2)
    return FederatedData((ClientData(*part[:3], spec),), part[3], spec, {})


def test_clean_federations_have_no_leak(given, row_pool, ring_pool):
    for data in (
        federate(given(row_pool(200)), Iid(), 4, None, 0),
        federate(given(ring_pool(90)), Metis(), 4, None, 0),
        federate(given(ring_pool(90)), MetisOverlap(), 10, None, 0),
    ):
        assert leakage(data) == CLEAN | {"copies_in_client": 0, "copies_in_server": 0}


def test_a_shared_example_is_found():
    found = leakage(by_hand((0, 10), (10, 12), (9, 14), (14, 20)))
    assert found["shared_in_client"] == 3  # 9 is trained on, 10 and 11 validate
    assert found["copies_in_client"] == 1
    assert leakage(by_hand((0, 10), (10, 12), (12, 14), (8, 16)))["shared_with_server"] == 4


def test_copies_inside_the_data_are_found(given, row_pool):
    pool = row_pool(100)
    pool.rows.x[:] = 1.0
    found = leakage(federate(given(pool), Iid(), 2, None, 0))
    assert found == CLEAN | {"copies_in_client": 8, "copies_in_server": 20}


def test_histogram_sizes_and_empty_splits():
    data = by_hand((0, 5), (5, 5), (6, 9), (9, 20))
    assert sizes(data) == [{"train": 5, "val": 0, "test": 3}]
    assert label_histogram(data) == [[3, 2]]
    assert empty_splits(data) == {"train": [], "val": [0], "test": []}


def test_memory_is_counted_once():
    data = by_hand((0, 5), (5, 6), (6, 9), (9, 20))
    assert memory_bytes(data) == 20 * 4 + 20 * 8
    digits = federate(Digits(), Iid(), 10, None, 0)
    assert memory_bytes(digits) == 1797 * (64 + 8) + 2 * 4


def test_preflight_has_it_all():
    found = preflight(federate(Digits(), Iid(), 3, None, 0))
    assert set(found) == {"sizes", "labels", "empty", "leakage", "bytes"}
    assert found["leakage"]["shared_with_server"] == 0
