import os
from pathlib import Path

import numpy as np
import pytest
import torch

from fedsim.data.examples import Rows
from fedsim.data.pool import Items, NodePool, RowPool


def _mirror():
    declared = os.environ.get("FEDSIM_DATA_MIRROR")
    beside = Path(__file__).parents[2].parent / "shared" / "data"
    return Path(declared) if declared else beside


_FOUND = _mirror()


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    """Every test has an empty cache, no mirror, and no network."""
    monkeypatch.setenv("FEDSIM_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("FEDSIM_DATA_MIRROR", raising=False)
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setattr("fedsim.data.pyg_files.reachable", lambda host: False)
    monkeypatch.setattr("fedsim.data.hub_files.reachable", lambda host: False)
    return tmp_path / "cache"


@pytest.fixture
def mirror():
    if not _FOUND.is_dir():
        pytest.skip("no data mirror: set FEDSIM_DATA_MIRROR")
    return _FOUND


@pytest.fixture
def items():
    def make(size, classes, seed=0, **other):
        labels = np.random.default_rng(seed).integers(classes, size=size)
        return Items(labels=labels, dataset=np.zeros(size, dtype=np.int64), **other)

    return make


class Given:
    """A source of pools made by the test."""

    def __init__(self, *pools):
        self.pools = pools

    def load(self):
        return self.pools


@pytest.fixture
def given():
    return Given


@pytest.fixture
def row_pool():
    """Rows whose only feature is their own number, so that a test recognises them."""

    def make(size, classes=4, seed=0, **other):
        y = torch.from_numpy(np.random.default_rng(seed).integers(classes, size=size))
        return RowPool(
            name="numbers", rows=Rows(torch.arange(size).float()[:, None], y), classes=classes, **other
        )

    return make


@pytest.fixture
def ring_pool():
    """A ring of nodes with short chords; the only feature of a node is its number."""

    def make(size, classes=3):
        node = torch.arange(size)
        pairs = [torch.stack([node, (node + step) % size]) for step in (1, 2)]
        edges = torch.cat([*pairs, *(pair.flip(0) for pair in pairs)], dim=1)
        return NodePool(
            name="ring", x=node.float()[:, None], edge_index=edges, y=node * classes // size, classes=classes
        )

    return make
