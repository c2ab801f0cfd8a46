"""The rule of `engine.tier = "auto"`, and the choice by a clock that a manifest keeps."""

import json
import warnings
from dataclasses import replace

import pytest
import torch

from fedsim import plugins
from fedsim.config import load
from fedsim.contracts import ClientInfo, DataSpec
from fedsim.run.round_loop import RoundLoop
from fedsim.run.runner import run
from fedsim.run.transports import LocalTransport
from fedsim.training.template import SeededModel
from fedsim.training.tiers import _steps, automatic_tier, stacked_chunk

with warnings.catch_warnings():  # PyG compiles a class while it is imported, which torch 2.13 deprecates
    warnings.simplefilter("ignore", DeprecationWarning)
    import torch_geometric.nn  # noqa: F401

ROWS, IMAGES, NODES = (
    DataSpec("rows", (64,), 10),
    DataSpec("rows", (3, 32, 32), 10),
    DataSpec("nodes", (1433,), 7),
)


def program(spec, model, **client):
    builder = plugins.build("models", model, "model", rounds=1)
    table = {"kind": "supervised", "batch_size": 16 if spec.task == "rows" else "full", **client}
    seeded = SeededModel(builder, 0, torch.float32)
    method = plugins.build("clients", table, "client", model=seeded, rounds=1)

    class Data:
        pass

    Data.spec = spec
    return method.program(ClientInfo(0, Data), 1)


@pytest.mark.parametrize(
    ("spec", "model", "clients", "size", "tier"),
    [
        (ROWS, {"kind": "mlp", "hidden": 64}, 100, 32, "T2"),
        (ROWS, {"kind": "mlp", "hidden": 64}, 2, 32, "T1"),
        (ROWS, {"kind": "mlp", "hidden": (3120, 3120)}, 20, 4, "T1"),
        (IMAGES, {"kind": "cnn", "kernel": 5, "hidden": 384}, 50, 50, "T1"),
        (NODES, {"kind": "gcn"}, 10, 250, "T2"),
    ],
)
def test_auto_on_the_sizes_of_the_benchmarks(spec, model, clients, size, tier):
    assert automatic_tier(clients, program(spec, model), spec, [size] * 1000) == tier


def test_a_program_that_cannot_be_stacked_runs_alone():
    whole = program(ROWS, {"kind": "mlp"})
    assert automatic_tier(100, replace(whole, stack=None), ROWS, [32] * 100) == "T1"


def test_steps_are_those_that_the_tiers_take():
    (phase,) = program(ROWS, {"kind": "mlp"}).phases  # batches of 16
    sizes = [40, 33, 16, 5, 5, 3]
    assert _steps(phase, ROWS, sizes, 6) == (3 + 3 + 1 + 1 + 1 + 1, 2 + 2 + 3, sum(sizes))
    assert _steps(phase, ROWS, sizes, 1)[1] == _steps(phase, ROWS, sizes, 1)[0]  # alone: no gain
    (nodes,) = program(NODES, {"kind": "gcn"}).phases
    assert _steps(nodes, NODES, [9, 4, 0, 7], 2) == (3, 2, 20)


def test_a_chunk_divides_the_cohort_evenly():
    tiny = program(ROWS, {"kind": "mlp", "hidden": 64})
    assert stacked_chunk(100, tiny, ROWS, [32] * 10) == 100
    assert stacked_chunk(1000, tiny, ROWS, [32] * 10) == 334  # three chunks of nearly equal size


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "clocked.toml"
    path.write_text(
        'rounds = 3\nevaluate = { clients = "none" }\nfederation = { clients = 4 }\n'
        'engine = { tier = "measured", workers = 1, device = "cpu" }\n'
    )
    return path


def test_a_measured_tier_is_told_and_kept_over_a_resume(file, tmp_path, monkeypatch):
    def play(folder, **options):
        return run(load(file), folder, federation_of=LocalTransport(file), **options)

    seconds = {"T1": 2.0, "T2": 1.0}
    monkeypatch.setattr(
        "fedsim.run.transports.seconds_of_round", lambda fed, parts: (fed.close(), seconds[fed.tier])[1]
    )
    (whole,) = play(tmp_path / "whole")
    manifest = json.loads((whole.folder / "manifest.json").read_text())
    assert (manifest["tier"], manifest["tier_measured"]) == ("T2", seconds)
    assert whole.result["tier"] == "T2"

    played = RoundLoop.play

    def stop(round_loop, state):
        if state.round == 1:
            raise KeyboardInterrupt
        return played(round_loop, state)

    with monkeypatch.context() as patch:
        patch.setattr(RoundLoop, "play", stop)
        with pytest.raises(KeyboardInterrupt):
            play(tmp_path / "cut")
    seconds.update(T1=0.5)  # now the other one would win
    (resumed,) = play(tmp_path / "cut", resume=True)
    assert resumed.result["tier"] == "T2"
    assert resumed.result["model_sha256"] == whole.result["model_sha256"]


def test_both_candidates_are_really_timed(file, tmp_path):
    (outcome,) = run(load(file), tmp_path / "run", federation_of=LocalTransport(file))
    manifest = json.loads((outcome.folder / "manifest.json").read_text())
    timed = manifest["tier_measured"]
    assert set(timed) == {"T1", "T2"}
    assert all(seconds > 0 for seconds in timed.values())
    assert manifest["tier"] == outcome.result["tier"] == min(timed, key=timed.get)
