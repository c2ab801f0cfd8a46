"""What lies beside the CTO-VPA sweeps: their cells, the rule, the partition, and the estimate for a card."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest
import torch

from attacks.cto_vpa.attack import CtoVpa
from fedsim.contracts import Cohort, Server
from fedsim.data.pool import Items
from fedsim.errors import ConfigError
from fedsim.params import Layout
from fedsim.plugins import build
from fedsim.sweep.cells import cells_of
from fedsim.sweep.file import read_sweep

EXPERIMENTS = Path(__file__).resolve().parents[2] / "experiments"
SWEEPS = ("cto_vpa_cifar16/experiment.toml", "cto_vpa_cifar10/experiment.toml", "cto_vpa_cifar10/full.toml")
WANTED = {
    "badnets",
    "neurotoxin",
    "a3fl",
    "dba_white",
    "dba_saturated",
    "literal",
    "random_trigger",
    "repaired",
}


def module(path):
    spec = importlib.util.spec_from_file_location(path.stem, EXPERIMENTS / path)
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


@pytest.mark.parametrize("name", SWEEPS)
def test_every_cell_is_an_experiment_with_an_attack(name):
    cells = cells_of(read_sweep(EXPERIMENTS / name))
    labels = {cell.choices["attack"] for cell in cells}
    assert labels >= WANTED | {"repaired_full", "full_random_v", "full_unprojected"}
    for cell in cells:
        table = cell.experiment.attack
        attack = build("attacks", {"kind": table.kind, **table.options}, "attack")
        assert attack.target == 2
        if cell.choices["attack"].startswith("full"):
            assert attack.force_target_row
            assert attack.fill
        if isinstance(attack, CtoVpa):
            assert (attack.patch.height, attack.patch.width, attack.split) == (3, 4, "pixels")


def test_every_condition_changes_something_for_every_arm(monkeypatch):
    monkeypatch.syspath_prepend(EXPERIMENTS / "cto_vpa_cifar16")
    base = {cell.choices["attack"]: cell for cell in cells_of(read_sweep(EXPERIMENTS / SWEEPS[0]))}
    cells = cells_of(read_sweep(EXPERIMENTS / "cto_vpa_cifar16" / "conditions.toml"))
    digests = [cell.experiment.digest() for cell in cells]
    assert len(set(digests)) == len(cells) == 9 * 4
    assert not set(digests) & {cell.experiment.digest() for cell in base.values()}
    for cell in cells:
        last, until = cell.experiment.rounds, cell.experiment.attack.window[1]
        assert last - until == 50


def cohort(updates):
    n = len(updates)
    return Cohort(
        round=1,
        partitions=tuple(range(n)),
        updates=updates,
        examples=torch.ones(n, dtype=torch.int64),
        layout=Layout.of({"w": updates[0]}),
    )


@pytest.mark.parametrize("n", [1, 2, 5, 10])
def test_updates_are_cut_to_the_median_norm(n):
    rule = module(Path("cto_vpa_cifar16/median_clipping.py")).MedianClipping()
    updates = torch.randn(n, 7, generator=torch.Generator().manual_seed(n)) * torch.arange(1, n + 1)[:, None]
    server = Server(model=torch.zeros(7), rng=torch.Generator())
    _, decision = rule.step({}, cohort(updates), server)
    bound = sorted(float(row.double().norm()) for row in updates)[(n - 1) // 2]
    cut = [row.double() * min(1.0, bound / float(row.double().norm())) for row in updates]
    torch.testing.assert_close(decision.update.double(), sum(cut) / n, rtol=1e-5, atol=1e-6)
    assert decision.update.dtype == torch.float32
    assert float(decision.weights.sum()) <= 1 + 1e-12


@pytest.mark.parametrize(("items", "clients"), [(600, 6), (601, 6), (7, 7)])
def test_clients_of_equal_size_have_shares_of_their_own(items, clients):
    chance = np.random.default_rng(0)
    labels = chance.integers(4, size=items)
    pool = Items(labels=labels, dataset=np.zeros(items, dtype=int), edge_index=None, ids=None)
    partition = module(Path("cto_vpa_cifar16/equal_dirichlet.py")).EqualDirichlet(alpha=0.3)
    parts = partition.divide(pool, clients, np.random.default_rng(1))
    assert sorted(np.concatenate(parts).tolist()) == list(range(items))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
    again = partition.divide(pool, clients, np.random.default_rng(1))
    assert all(np.array_equal(one, other) for one, other in zip(parts, again, strict=True))
    if items > 100:  # the first hands are far from the whole's proportions
        shares = np.bincount(labels[parts[0]], minlength=4) / len(parts[0])
        assert shares.max() > 0.45


def test_an_impossible_alpha_is_named():
    with pytest.raises(ConfigError, match="alpha must be above 0 and finite, found 0"):
        module(Path("cto_vpa_cifar16/equal_dirichlet.py")).EqualDirichlet(alpha=0)


def test_the_estimate_counts_steps_measurements_and_searches():
    full = module(Path("cto_vpa_cifar10/full.py"))
    cells = {cell.choices["attack"]: cell.experiment for cell in cells_of(read_sweep(full.FILE))}
    rates = full.Rates(step=1.0, tested=100.0, search=10.0, memory=0.0, source="of the test")
    honest = 300 * 10 * 2 * 16  # rounds, clients, epochs, batches of 500 images
    measured = 100 * 10_000 / 100
    assert full.minutes(cells["literal"], rates, clean=True) * 60 == pytest.approx(honest + measured)
    literal = honest + 4 * measured + 500 * 10
    assert full.minutes(cells["literal"], rates, clean=False) * 60 == pytest.approx(literal)
    longer = 100 * 3 * 2 * 16
    assert full.minutes(cells["repaired"], rates, clean=False) * 60 == pytest.approx(literal + longer)
    assert any(line.startswith("together: ") for line in full.told([], 5, measure=False))
