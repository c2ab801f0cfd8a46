"""What must not grow: memory over rounds, and the cost of a round with the number of registered clients."""

import time
from statistics import median

import pytest

from fedsim.config import parse
from fedsim.run.assembly import assemble
from fedsim.run.private_store import PrivateStore
from fedsim.run.round_loop import RoundLoop
from fedsim.run.transports import engine_federation

pytestmark = pytest.mark.slow

MB = 1024  # KiB
SAMPLES, COHORT = 8, 50
SOURCE = """
from dataclasses import dataclass

import torch

from fedsim.data.examples import Rows
from fedsim.data.pool import RowPool


@dataclass(frozen=True, kw_only=True)
class Vectors:
    count: int

    def load(self):
        rng = torch.Generator().manual_seed(0)
        x, y = torch.randn(self.count, 64, generator=rng), torch.randint(10, (self.count,), generator=rng)
        rows = Rows(x, y)
        return (RowPool(name="vectors", rows=rows, test=rows.part(0, 10), classes=10),)
"""


@pytest.fixture
def federation_of(tmp_path, monkeypatch):
    """Makes the round loop of so many registered clients; its workers end with the test."""
    (tmp_path / "many_vectors.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(str(tmp_path))
    opened = []

    def make(clients, tier, **client):
        experiment = parse(
            {
                "rounds": 1000,
                "data": {"kind": "many_vectors:Vectors", "count": clients * SAMPLES},
                "federation": {"clients": clients, "clients_per_round": COHORT, "split": [1.0, 0.0, 0.0]},
                "model": {"kind": "mlp", "hidden": 64},
                "client": {"kind": "supervised", "batch_size": 4, **client},
                "evaluate": {"clients": "none"},
                "engine": {"tier": tier, "workers": 1, "device": "cpu"},
            }
        )
        parts = assemble(experiment, 0)
        federation = engine_federation(parts, PrivateStore(tmp_path / "private"))
        opened.append(federation)
        return RoundLoop(parts, federation)

    yield make
    for federation in opened:
        federation.close()


def resident():
    """KiB of this process."""
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:"))


@pytest.mark.parametrize("tier", ["T1", "T2"])
@pytest.mark.parametrize("keeps", [False, True])
def test_memory_stays_flat_over_200_rounds(federation_of, tier, keeps):
    momentum = {"kind": "sgd", "learning_rate": 0.01, "momentum": 0.9}
    options = {"keep_optimizer": True, "optimizer": momentum} if keeps else {}
    loop = federation_of(100, tier, **options)  # half of all clients: all have state after a few rounds
    state = loop.start()
    marks = []
    for number in range(1, 251):
        state, _ = loop.play(state)
        if number % 50 == 0:
            marks.append(resident())
    assert marks[-1] - marks[0] < 8 * MB, marks  # a leak of one model (19 KB) a client is 190 MB


@pytest.mark.parametrize("tier", ["T1", "T2"])
def test_ten_thousand_registered_clients_cost_a_round_no_more_than_a_thousand(federation_of, tier):
    loops = [federation_of(clients, tier) for clients in (1000, 10_000)]
    states = [loop.start() for loop in loops]
    seconds = [[], []]
    for number in range(60):  # interleaved, so that a slow minute hits both
        for place, loop in enumerate(loops):
            begun = time.process_time()
            states[place], _ = loop.play(states[place])
            if number >= 20:  # by then most of the thousand have been moved to their device
                seconds[place].append(time.process_time() - begun)
    few, many = map(median, seconds)
    assert many < 1.35 * few  # new clients are met in every round: each is unpacked once
