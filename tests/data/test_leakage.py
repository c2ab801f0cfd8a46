from dataclasses import replace

import torch

from fedsim.contracts import ClientData, DataSpec, FederatedData
from fedsim.data.examples import Rows
from fedsim.data.federate import federate
from fedsim.data.graph_partition import Metis, MetisOverlap
from fedsim.data.leakage import leakage
from fedsim.data.partition import Iid

CLEAN = {
    "shared_in_client": 0,
    "shared_across_clients": 0,
    "train_in_others_test": 0,
    "shared_with_server": 0,
    "copies_in_client": 0,
    "copies_across_clients": 0,
    "copies_in_others_test": 0,
    "copies_in_server": 0,
}


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
    ):
        assert leakage(data) == CLEAN


def test_declared_overlap_is_counted_and_nobody_trains_on_another_s_test(given, ring_pool):
    data = federate(given(ring_pool(90)), MetisOverlap(), 10, None, 0)
    several = data.facts["shared_items"]
    assert 0 < several <= 90
    # each client has memory of its own, so that its nodes are told by their features
    assert leakage(data) == CLEAN | {"copies_across_clients": several}
    (facts,) = data.facts["sets"]
    assert facts["train_in_others_test"] == 0


def test_an_example_of_two_clients_is_found_wherever_it_is():
    first, second = by_hand((0, 5), (5, 6), (6, 8), (12, 20)), by_hand((6, 9), (9, 10), (0, 3), (12, 20))
    shared = FederatedData((*first.clients, *second.clients), None, first.spec, {})
    found = leakage(shared)
    assert (found["shared_across_clients"], found["copies_across_clients"]) == (0, 5)  # memory of their own
    pool = Rows(torch.arange(20.0)[:, None], torch.arange(20) % 2)
    found = leakage(two_clients(pool, ((0, 5), (5, 6), (6, 8)), ((6, 9), (9, 10), (0, 3))))
    assert found["shared_across_clients"] == found["copies_across_clients"] == 5  # 0, 1, 2, 6, 7
    assert found["train_in_others_test"] == found["copies_in_others_test"] == 5
    assert found["shared_in_client"] == found["copies_in_client"] == 0


def test_what_the_server_trusts_is_with_nobody_else():
    pool = Rows(torch.arange(20.0)[:, None], torch.arange(20) % 2)
    data = two_clients(pool, ((0, 5), (5, 6), (6, 8)), ((8, 10), (10, 11), (11, 12)))
    assert leakage(replace(data, trusted=pool.part(12, 20)))["shared_with_server"] == 0
    assert leakage(replace(data, trusted=pool.part(7, 14)))["shared_with_server"] == 5


def two_clients(pool, *bounds):
    spec = DataSpec("rows", (1,), 2)
    clients = [ClientData(*[pool.part(*each) for each in splits], spec) for splits in bounds]
    return FederatedData(tuple(clients), None, spec, {})


def test_a_shared_example_is_found():
    found = leakage(by_hand((0, 10), (10, 12), (9, 14), (14, 20)))
    assert found["shared_in_client"] == 3  # 9 is trained on, 10 and 11 validate
    assert found["copies_in_client"] == 1
    assert leakage(by_hand((0, 10), (10, 12), (12, 14), (8, 16)))["shared_with_server"] == 4


def test_copies_inside_the_data_are_found(given, row_pool):
    pool = row_pool(100)
    pool.rows.x[:] = 1.0
    found = leakage(federate(given(pool), Iid(), 2, None, 0))
    assert found == CLEAN | {
        "copies_in_client": 8,
        "copies_across_clients": 1,
        "copies_in_server": 20,
    }
