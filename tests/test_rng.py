import hashlib
import random

import numpy as np
import pytest
import torch

from fedsim.rng import derive, numpy_stream, seeded_globals, stream

ADDRESSES = [
    (seed, purpose, number, partition)
    for seed in (0, 1)
    for purpose in ("cohort", "shuffle/0", "shuffle/1")
    for number in (0, 1, 11)
    for partition in (0, 1, 11)
]


def test_a_seed_is_half_of_a_blake2_digest_of_its_address():
    found = hashlib.blake2b(b"3|init|0|5", digest_size=8).digest()
    assert derive(3, "init", 0, 5) == int.from_bytes(found, "little") // 2


def test_addresses_do_not_collide_and_fit_a_signed_64_bit_integer():
    seeds = {derive(*address) for address in ADDRESSES}
    assert len(seeds) == len(ADDRESSES)
    assert all(0 <= seed < 2**63 for seed in seeds)


@pytest.mark.parametrize("make", [lambda a: stream(*a).initial_seed(), lambda a: numpy_stream(*a).random()])
def test_a_stream_depends_on_its_address_alone(make):
    first = [make(address) for address in ADDRESSES]
    torch.manual_seed(1)
    second = [make(address) for address in reversed(ADDRESSES)]
    assert first == second[::-1]
    assert len(set(first)) == len(first)


def test_streams_leave_the_global_generators_alone():
    before = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()  # noqa: NPY002
    torch.rand(3, generator=stream(0, "x"))
    numpy_stream(0, "x").random(3)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert (np.random.get_state()[1] == before[1]).all()  # noqa: NPY002
    assert random.getstate() == before[2]


def draws():
    return random.random(), np.random.rand(), torch.rand(1).item()  # noqa: NPY002


def test_globals_are_seeded_inside_the_scope_and_restored_after_it():
    with seeded_globals(5):
        first = draws()
    before = draws()
    with seeded_globals(5):
        assert draws() == first
    after = draws()
    with seeded_globals(6):
        assert all(a != b for a, b in zip(draws(), first, strict=True))
    assert len({before[2], after[2], first[2]}) == 3  # the outer stream went on where it was


def test_globals_are_restored_after_an_error():
    torch.manual_seed(3)
    state = torch.get_rng_state()
    with pytest.raises(KeyError), seeded_globals(2**62):
        raise KeyError
    assert torch.equal(torch.get_rng_state(), state)
