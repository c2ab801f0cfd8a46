"""The device benchmark: at toy sizes on the CPU, and W2 on a card."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

SCRIPT = Path(__file__).resolve().parents[2] / "experiments" / "benchmarks" / "gpu.py"


def report(tmp_path, *words):
    out = tmp_path / "gpu.json"
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--out", str(out), *words], capture_output=True, text=True, timeout=900
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert "ray" not in done.stderr.lower()
    return {one["workload"]: one for one in json.loads(out.read_text())}


@pytest.mark.slow
def test_it_runs_on_the_cpu_at_toy_sizes(tmp_path):
    found = report(tmp_path, "--device", "cpu", "--quick")
    assert set(found) == {"W1", "W2", "W3 3 dense", "W3 3 sparse"}
    for one in found.values():
        assert one["model_distance"] < 1e-5
        assert set(one["ratios"]) == {"T1/T2", "loop/T2", "loop/T1"}
        assert all(0 < share <= 1.5 for share in one["busy"].values())


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA card")
def test_w2_on_a_card(tmp_path):
    found = report(tmp_path, "--device", "cuda:0", "--quick")["W2"]
    assert found["device"] == "cuda"
    assert found["model_distance"] < 1e-4
    assert found["launches"]["T1"] > 0
