"""What the README shows runs as it is shown."""

import json
import re
from pathlib import Path

import pytest

README = Path(__file__).parents[2] / "README.md"
TEXT = README.read_text(encoding="utf-8")
EXPERIMENT, ATTACK, SWEEP = re.findall(r"```toml\n(.*?)```", TEXT, re.DOTALL)
(STRATEGY,) = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)


def test_the_experiment_meets_its_expectation_and_takes_the_overrides_shown(fedsim, folder):
    (folder / "skew.toml").write_text(EXPERIMENT)
    shown = re.search(r"`fedsim run skew\.toml (.*?)`", TEXT)
    assert shown is not None
    assert fedsim("run", "skew.toml", *shown[1].split(), "--set", "expect={}", out="quick").code == 0
    whole = fedsim("run", "skew.toml", out="whole")
    assert whole.code == 0, whole.err


def test_the_strategy_runs_beside_the_experiment(fedsim, folder):
    (folder / "median.py").write_text(STRATEGY)
    kind = re.search(r'strategy = \{ kind = "(median:Median)" \}', STRATEGY)
    assert kind is not None
    run = fedsim("run", "quick.toml", "--set", f"strategy.kind={kind[1]}", "--set", "rounds=2")
    assert run.code == 0, run.err


def without(*keys):
    """The README's experiment but for some keys."""
    return "\n".join(line for line in EXPERIMENT.splitlines() if line.split("=")[0].strip() not in keys)


def test_the_attack_runs_against_the_defence(fedsim, folder):
    (folder / "attacked.toml").write_text(without("strategy", "expect", "seeds") + "\n" + ATTACK)
    run = fedsim("run", "attacked.toml", "--set", "rounds=31", "--set", "client.epochs=1")
    assert run.code == 0, run.err
    told = run.result["metrics"]
    assert told["attack_success"]["at_stop"] is not None
    assert told["detector"]["true_positives"] + told["detector"]["false_negatives"] == 3 * 21


def test_the_sweep_plays_every_cell(fedsim, folder):
    attack = 'attack = { kind = "honest", malicious = 3, participation = "forced" }\n'
    (folder / "matrix.toml").write_text(without("strategy", "expect", "seeds") + "\n" + attack + SWEEP)
    run = fedsim("sweep", "matrix.toml", "--set", "rounds=2", "--jobs", "1", "--out", str(folder / "cells"))
    assert run.code == 0, run.err
    cells = (folder / "cells" / "cells.jsonl").read_text().splitlines()
    assert [json.loads(cell)["status"] for cell in cells] == ["completed"] * 4


@pytest.mark.parametrize("link", re.findall(r"\]\(([^)#:]+)\)", TEXT))
def test_links_lead_somewhere(link):
    assert (README.parent / link).exists()
