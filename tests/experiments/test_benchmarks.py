"""The benchmark command at toy sizes: who plays, what is reported, and what statistics are formed."""

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "experiments" / "benchmarks"


@pytest.fixture
def part(monkeypatch):
    """Imports a module of the benchmark folder, which is a script's folder and no package."""
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module


def quick(tmp_path, *words):
    out = tmp_path / "benchmark.json"
    command = [sys.executable, str(FOLDER / "run.py"), "--quick", "--out", str(out), *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(out.read_text()), done.stdout


def script(path, text):
    """An interpreter of a peer that is none."""
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def test_our_tiers_and_the_loop_end_with_the_same_model(tmp_path):
    words = ("W1", "--peers", "loop,pfl,fedjax", "--fedjax-python", sys.executable)
    page = tmp_path / "RESULTS.md"
    report, printed = quick(tmp_path, *words, "--places", "in-process:1", "--markdown", str(page))
    rows = {row["label"]: row for row in report["rows"]}
    assert set(rows) == {
        "T0 in-process 1",
        "T1 in-process 1",
        "T2 in-process 1",
        "loop",
        "pfl 1 thread",
        "pfl 2 threads",
        "fedjax",
    }
    for label in ("T0 in-process 1", "T1 in-process 1", "T2 in-process 1", "loop"):
        row = rows[label]
        assert row["model_agrees"]
        assert row["model_distance"] < 1e-5
        assert row["compared_with"] == "loop"
        assert 0 < row["ms_per_round"]["min"] <= row["ms_per_round"]["median"] <= row["ms_per_round"]["max"]
        assert row["peak_mb"] > 50
        assert row["startup_s"] > 0
    assert "--pfl-python" in rows["pfl 1 thread"]["missing"]
    assert "missing: no interpreter given" in printed
    assert "No module named 'fedjax'" in rows["fedjax"]["missing"]  # an interpreter without it
    assert set(report["ratios"]["W1"]) >= {"T1/loop", "T2/loop"}
    told = page.read_text()
    assert "| W1 | T2/loop |" in told
    assert "| W1 | loop |" in told
    assert str(tmp_path) not in told + printed  # no paths of this machine
    assert sys.executable not in told
    assert set(report["machine"]) == {"cores", "machine", "cpu_capability", "memory_gib", "versions"}


@pytest.mark.slow
def test_every_workload_agrees_with_flower_and_the_loop(tmp_path):
    words = ("W1", "W2", "W3", "W4", "W5", "--peers", "flower,loop", "--places", "in-process:2,ray:2")
    picture = tmp_path / "curves.png"
    report, _ = quick(tmp_path, *words, "--picture", str(picture))
    assert all(row["model_agrees"] for row in report["rows"])
    assert {row["label"] for row in report["rows"]} >= {"flower", "loop", "T1 ray 2", "T2 in-process 2"}
    assert picture.stat().st_size > 10_000


@pytest.mark.slow
def test_peers_that_hang_or_die_become_rows_and_their_processes_end(tmp_path):
    hangs = script(tmp_path / "hangs", f"echo $$ > {tmp_path}/process; exec sleep 1000")
    dies = script(
        tmp_path / "dies", """echo '{"ready": true, "ms": [1.0]}'; read ask; echo Out of luck >&2; exit 3"""
    )
    words = (
        "W4",
        "--peers",
        "pfl,fedjax",
        "--pfl-python",
        hangs,
        "--fedjax-python",
        dies,
        "--patience",
        "20",
    )
    report, _ = quick(tmp_path, *words, "--places", "in-process:1")
    rows = {row["label"]: row for row in report["rows"]}
    assert rows["pfl 1 thread"]["missing"] == "no answer in 20 s"
    assert rows["fedjax"]["missing"] == "ended: Out of luck"
    assert rows["T1 in-process 1"]["model_agrees"]
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "process").read_text()), 0)


def test_one_of_ours_that_is_missing_is_a_failure(tmp_path):
    out = tmp_path / "benchmark.json"
    command = [sys.executable, str(FOLDER / "run.py"), "W4", "--quick", "--out", str(out)]
    done = subprocess.run(
        [*command, "--patience", "0.01", "--peers", ""], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 1, done.stderr[-2000:]
    assert {row["missing"] for row in json.loads(out.read_text())["rows"]} == {"no answer in 0.01 s"}


@pytest.mark.slow
def test_a_profile_tells_stages_and_the_physical_limit(tmp_path):
    page = tmp_path / "RESULTS.md"
    words = ("W1", "--profile", "--peers", "loop", "--places", "in-process:1", "--markdown", str(page))
    report, printed = quick(tmp_path, *words)
    profiles = {one["label"]: one for one in report["profiles"]}
    assert set(profiles) == {"T1 in-process 1", "T2 in-process 1"}
    for one in profiles.values():
        assert sum(one["stages"].values()) == pytest.approx(1, abs=1e-6)
        assert one["stages"]["forward, backward"] > 0.05
        assert {"gather", "optimiser", "rule", "record", "draw", "transport"} <= set(one["stages"])
        # two products of the first layer, three of the second, of 32 rows and 6 clients
        assert one["limit"]["gflop"] == pytest.approx(1e-9 * 6 * 32 * 2 * (2 * 64 * 64 + 3 * 64 * 10))
        assert one["times_limit"] == pytest.approx(one["ms"] / one["limit"]["ms"])
    assert "times the physical limit" in printed
    assert "## What is left" in page.read_text()


def test_time_in_libraries_belongs_to_those_that_call_them(part):
    anatomy = part("peers.anatomy")
    rule, batches = (
        str(anatomy.ROOT / one) for one in ("strategies/fedavg.py", "fedsim/training/batches.py")
    )
    step, gather, wrap, add = (
        (rule, 1, "step"),
        (batches, 1, "rows"),
        ("/lib/wrap.py", 1, "wrap"),
        ("~", 0, "add"),
    )
    stats = {  # calls, primitive calls, own seconds, all seconds, the same by caller
        step: (1, 1, 1.0, 9.0, {}),
        gather: (1, 1, 2.0, 7.0, {}),
        wrap: (2, 2, 4.0, 10.0, {step: (1, 1, 1.0, 6.0), gather: (1, 1, 3.0, 4.0)}),
        add: (3, 3, 9.0, 9.0, {wrap: (2, 2, 6.0, 6.0), step: (1, 1, 3.0, 3.0)}),
    }
    found = anatomy.shares(stats)
    assert found == pytest.approx({"rule": 1 + 1 + 3 + 6 * 0.6, "gather": 2 + 3 + 6 * 0.4})


def test_only_missed_goals_are_profiled_unless_all_are_asked_for(part):
    profiled = part("profiled")
    ratios = {
        "W1": {
            "T2/loop": {"met": False, "between": ["T2 in-process 1", "loop"]},
            "T2/flower": {"met": False, "between": ["T2 in-process 1", "flower"]},
            "T1/loop": {"met": True, "between": ["T1 in-process 2", "loop"]},
        },
        "W5": {"T1 1000/10000": {"met": False, "between": ["T1 in-process 1", "T1 in-process 1"]}},
    }
    assert profiled.missed(ratios, every=False) == [
        ("W1", "T2 in-process 1"),
        ("W5 10000", "T1 in-process 1"),
    ]
    assert ("W1", "T1 in-process 2") in profiled.missed(ratios, every=True)


def test_the_whole_command_takes_less_than_twelve_minutes_by_its_own_estimate(part):
    run, expected = part("run"), part("expected")
    asked = run._parser().parse_args(["W1", "W2", "W3", "W4", "W5", "--peers", "flower,loop,pfl,fedjax"])
    groups = [[(one, run._contenders(one, asked)) for one in group] for group in run._groups(asked)]
    assert 5 < expected.minutes(groups) < 12
    labels = {(one.name, contender.label) for group in groups for one, many in group for contender in many}
    for name, pairs in part("goals").GOALS.items():
        for pair, goal in pairs.items():
            if goal is not None and name != "W5":
                for system in pair.split("/"):
                    assert any(v == name and label.startswith(system) for v, label in labels), (name, pair)


def test_a_ratio_is_formed_within_each_repetition(part):
    spread = part("spread")
    slow, fast = [[10.0, 30.0, 20.0], [40.0]], [[2.0], [8.0, 2.0]]
    assert spread.ratio(slow, fast) == spread.Spread(median=9.0, low=8.0, high=10.0)
    with pytest.raises(ValueError, match="argument 2 is shorter"):
        spread.ratio(slow, fast[:1])


def test_the_better_backend_counts_and_a_name_is_not_a_prefix_of_another(part):
    spread = part("spread")
    times = {"T1 in-process 1": [[5.0]], "T1 ray 2": [[4.0]], "T10 x": [[1.0]], "loop": [[9.0]]}
    assert spread.fastest(times, "T1") == "T1 ray 2"
    assert spread.fastest(times, "T1 in-process") == "T1 in-process 1"
    assert spread.fastest(times, "loop") == "loop"
    assert spread.fastest(times, "T2") is None


def test_goals_are_judged_by_the_median(part):
    verdict = part("verdict")
    times = {
        ("W1", "T2 in-process 1"): [[1.0], [2.0], [1.0]],
        ("W1", "loop"): [[9.0], [9.0], [7.0]],
        ("W5 1000", "T2 in-process 1"): [[10.0]],
        ("W5 10000", "T2 in-process 1"): [[12.0]],
    }
    found = verdict.ratios(times)
    assert found["W1"]["T2/loop"] | {"between": 0} == {
        "median": 7.0,
        "low": 4.5,
        "high": 9.0,
        "goal": 8,
        "met": False,
        "between": 0,
    }
    assert not found["W5"]["T2 1000/10000"]["met"]
    assert verdict.ratios(times, judged=False)["W1"]["T2/loop"]["goal"] is None


def test_peak_memory_counts_this_process_and_its_children(part):
    memory = part("memory")
    code = "import time; block = bytearray(200_000_000); print(1, flush=True); time.sleep(60)"
    before = memory.peak_mb(os.getpid())
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as child:
        assert child.stdout.readline()
        after = memory.peak_mb(os.getpid())
        child.kill()
    assert 195 < after - before < 260
