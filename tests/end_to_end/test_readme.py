"""What the README shows runs as it is shown."""

import re
from pathlib import Path

import pytest

README = Path(__file__).parents[2] / "README.md"
BLOCKS = dict(re.findall(r"```(toml|python)\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL))


def test_the_experiment_meets_its_expectation_and_takes_the_overrides_shown(fedsim, folder):
    (folder / "skew.toml").write_text(BLOCKS["toml"])
    shown = re.search(r"`fedsim run skew\.toml (.*?)`", README.read_text(encoding="utf-8"))
    assert shown is not None
    assert fedsim("run", "skew.toml", *shown[1].split(), "--set", "expect={}", out="quick").code == 0
    whole = fedsim("run", "skew.toml", out="whole")
    assert whole.code == 0, whole.err


def test_the_strategy_runs_beside_the_experiment(fedsim, folder):
    (folder / "median.py").write_text(BLOCKS["python"])
    kind = re.search(r'strategy = \{ kind = "(median:Median)" \}', BLOCKS["python"])
    assert kind is not None
    run = fedsim("run", "quick.toml", "--set", f"strategy.kind={kind[1]}", "--set", "rounds=2")
    assert run.code == 0, run.err


@pytest.mark.parametrize("link", re.findall(r"\]\(([^)#:]+)\)", README.read_text(encoding="utf-8")))
def test_links_lead_somewhere(link):
    assert (README.parent / link).exists()
