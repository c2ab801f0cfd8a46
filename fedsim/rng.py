"""The only source of randomness: independent streams, addressed by what they are for.

A stream depends on (seed, purpose, round, partition) and on nothing else: not on the order of calls,
the number of workers, or what other clients draw.
"""

import hashlib
import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


def derive(seed: int, purpose: str, round: int = 0, partition: int = 0) -> int:
    """A 63-bit seed for one stream, the first 8 bytes of a BLAKE2b digest of its address."""
    address = f"{seed}|{purpose}|{round}|{partition}".encode()
    return int.from_bytes(hashlib.blake2b(address, digest_size=8).digest(), "little") >> 1


def stream(seed: int, purpose: str, round: int = 0, partition: int = 0) -> torch.Generator:
    """A CPU generator for one purpose in one round of one partition."""
    return torch.Generator().manual_seed(derive(seed, purpose, round, partition))


def numpy_stream(seed: int, purpose: str, round: int = 0, partition: int = 0) -> np.random.Generator:
    """The same address for code that draws with NumPy."""
    return np.random.default_rng(derive(seed, purpose, round, partition))


@contextmanager
def seeded_globals(seed: int) -> Iterator[None]:
    """Seed Python's, NumPy's and torch's global generators inside a scope, and restore them after it.

    For code that cannot take a generator: module initialisers of torch, and foreign Flower apps.
    """
    python_state = random.getstate()
    numpy_state = np.random.get_state()  # noqa: NPY002
    cards = list(range(torch.cuda.device_count())) if torch.cuda.is_initialized() else []  # type: ignore[no-untyped-call]
    with torch.random.fork_rng(devices=cards):
        random.seed(seed)
        np.random.seed(seed % 2**32)  # noqa: NPY002
        _seed_torch(seed)
        try:
            yield
        finally:
            random.setstate(python_state)
            np.random.set_state(numpy_state)  # noqa: NPY002


def _seed_torch(seed: int) -> None:
    """As `torch.manual_seed`, which without CUDA keeps a stack trace of every call for good."""
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_available():
        torch.cuda.manual_seed_all(seed)
