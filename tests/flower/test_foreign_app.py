"""Somebody else's apps: the same final arrays as under Flower, whatever the number of workers."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fedsim.engine.options import EngineOptions
from fedsim.flower.foreign.app import run_app
from fedsim.flower.foreign.result import summary_lines

APPS = Path(__file__).parent / "apps"
EVERYONE = {  # arithmetic that is exact in any order, and no draws, so that Flower's order does not matter
    "message_api": "num-server-rounds=2 fraction-train=1.0 nodes=8",
    "push_pull": "rounds=2 cohort=8 noise=1",
    "client_fn": "num-server-rounds=2",
}


def play(app, output, config="", *, workers=1, clients=None, seed=0, backend="in-process"):
    return run_app(
        APPS / app,
        clients=clients,
        seed=seed,
        engine=EngineOptions(workers=workers, backend=backend),
        overrides=[f'output="{output}" {config}'],
        apart=False,
    )


def final(folder):
    with np.load(folder / "final.npz") as arrays:
        return dict(arrays)


def under_flower(app, folder, config):
    environment = os.environ | {"FLWR_TELEMETRY_ENABLED": "0"}
    script = [sys.executable, str(APPS / "run_in_flower.py"), str(APPS / app), "8"]
    subprocess.run([*script, f'output="{folder}" {config}'], check=True, timeout=120, env=environment)
    return final(folder)


@pytest.mark.parametrize("app", EVERYONE)
def test_final_arrays_are_those_of_flower(app, tmp_path):
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    ours.mkdir()
    theirs.mkdir()
    expected = under_flower(app, theirs, EVERYONE[app])
    result = play(app, ours, EVERYONE[app], clients=8, workers=2)
    found = final(ours)
    assert result.status == "completed"
    assert found.keys() == expected.keys()
    for name in expected.keys() - {"shared"}:
        np.testing.assert_array_equal(found[name], expected[name])


@pytest.mark.parametrize("app", EVERYONE)
def test_same_seed_same_bits_on_one_and_two_workers(app, tmp_path):
    folders = [tmp_path / name for name in ("one", "two", "other")]
    for folder, workers, seed in zip(folders, (1, 2, 1), (5, 5, 6), strict=True):
        folder.mkdir()
        config = {"message_api": "", "push_pull": "", "client_fn": "fraction-fit=0.4"}[app]
        result = play(app, folder, config, workers=workers, seed=seed)
        assert result.status == "completed", summary_lines(result)
    one, two, other = map(final, folders)
    assert {name: value.tobytes() for name, value in one.items()} == {
        name: value.tobytes() for name, value in two.items()
    }
    assert any(one[name].tobytes() != other[name].tobytes() for name in one)


def test_message_api_queries_named_actions_and_lifespans(tmp_path):
    result = play("message_api", tmp_path)
    facts = json.loads((tmp_path / "facts.json").read_text())
    assert facts == {"partitions": list(range(6)), "counts": [2] * 6, "events": ["begin"]}
    assert (result.clients, result.strategy) == (6, "FedAvg")
    assert result.messages == 3 * 6 + 3 * (3 + 6)
    np.testing.assert_array_equal(result.arrays["weight"], final(tmp_path)["weight"])
    assert set(result.metrics) == {"train (clients)", "evaluate (clients)"}
    assert f"model_sha256 {result.model_sha256} (FedAvg)" in summary_lines(result)


def test_integer_arrays_stay_integers(tmp_path):
    result = play("message_api", tmp_path)
    assert final(tmp_path)["steps"].dtype == result.arrays["steps"].dtype == np.int64
    assert int(result.arrays["steps"]) == 3
    assert any("FedAvg turned integer arrays into floats" in note for note in result.notes)


def test_context_counts_rounds_on_any_worker(tmp_path):
    play("client_fn", tmp_path, workers=2)
    for number, entry in enumerate(json.loads((tmp_path / "log.json").read_text()), start=1):
        assert [reply["partition"] for reply in entry["replies"]] == list(range(5))
        assert {reply["count"] for reply in entry["replies"]} == {number}
        assert {reply["messages"] for reply in entry["replies"]} == {2 * number - 1}


def test_initial_parameters_may_come_from_a_client(tmp_path):
    result = play("client_fn", tmp_path, "initial-from-client=true")
    assert result.status == "completed"
    assert result.messages == 1 + 3 * (5 + 5)
    assert set(result.metrics) == {"evaluate (clients)"}
    np.testing.assert_allclose(result.arrays["0"], final(tmp_path)["0"], rtol=0, atol=0)


def test_server_and_clients_do_not_share_modules(tmp_path):
    play("push_pull", tmp_path)
    assert set(final(tmp_path)["shared"]) == {0}
    assert not {"task", "server", "client"} & sys.modules.keys()


def test_clients_and_configuration_are_what_was_asked(tmp_path):
    result = play("message_api", tmp_path, "num-server-rounds=1 optimizer.learning-rate=0.25", clients=4)
    assert result.clients == 4
    weights = final(tmp_path)["weight"] - np.arange(4)
    assert weights.max() <= 0.25
    assert set(result.metrics["train (clients)"]) == {1}


@pytest.mark.slow
def test_ray_gives_the_same_bits(tmp_path):
    one = play("push_pull", tmp_path)
    expected = final(tmp_path)["vector"].tobytes()
    other = play("push_pull", tmp_path, workers=2, backend="ray")
    assert (one.status, other.status) == ("completed", "completed")
    assert final(tmp_path)["vector"].tobytes() == expected
