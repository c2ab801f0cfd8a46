import torch

from fedsim.contracts import ClientData, DataSpec, FederatedData
from fedsim.data.digits import Digits
from fedsim.data.examples import Rows
from fedsim.data.federate import federate
from fedsim.data.partition import Iid
from fedsim.data.preflight import empty_splits, label_histogram, memory_bytes, preflight, sizes


def by_hand(train, val, test, server, y=None):
    """One client over the rows of one pool, given as positions."""
    x, y = torch.arange(20.0)[:, None], torch.arange(20) % 2 if y is None else y
    part = [Rows(x, y).part(*bounds) for bounds in (train, val, test, server)]
    spec = DataSpec("rows", (1,), 2)
    return FederatedData((ClientData(*part[:3], spec),), part[3], spec, {})


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
