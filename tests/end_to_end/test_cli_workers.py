"""The same file and seed give the same hash on any number of workers, on both backends, and in messages."""

import pytest


@pytest.fixture
def reference(fedsim, sets):
    done = fedsim("run", "quick.toml", *sets("engine.tier=T1"), out="reference")
    assert done.code == 0, done.err
    return done


@pytest.mark.parametrize(
    "words",
    [
        ["engine.tier=T1", "engine.workers=2"],
        ["engine.tier=T1", "engine.workers=3", "engine.chunk=1"],
        ["engine.tier=T1", "engine.workers=2", "engine.backend=ray"],
        ["engine.workers=1", "engine.tier=T0"],
    ],
    ids=" ".join,
)
def test_same_hash_cohorts_and_metrics(spawn, sets, reference, words):
    done = spawn("run", "quick.toml", *sets(*words))
    assert done.code == 0, done.err
    assert done.sha == reference.sha
    assert done.result["metrics"] == reference.result["metrics"]
    assert [record["cohort"] for record in done.rounds] == [record["cohort"] for record in reference.rounds]


def test_stacked_clients_give_the_same_hash_on_one_and_two_workers(spawn, fedsim, sets):
    chosen = ["engine.tier=T2", "engine.chunk=2"]
    one = fedsim("run", "quick.toml", *sets(*chosen), out="one")
    two = spawn("run", "quick.toml", *sets(*chosen, "engine.workers=2"))
    assert one.code == two.code == 0, (one.err, two.err)
    assert one.sha == two.sha
    assert one.result["tier"] == "T2"
    assert one.result["detours"] == []


@pytest.mark.slow
def test_a_client_method_beside_the_experiment_works_in_every_worker(spawn, sets):
    counting = "client.kind=methods_of_a_test:Counting"
    shas = [
        spawn("run", "quick.toml", *sets(counting, f"engine.workers={n}"), out=f"w{n}").sha for n in (1, 2)
    ]
    assert shas[0] == shas[1]


def test_another_seed_gives_another_model(fedsim, sets, reference):
    assert fedsim("run", "quick.toml", *sets("seed=1")).sha != reference.sha
