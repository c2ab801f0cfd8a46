"""The examples of the author's guide run as they are shown, and do what the registered plugins do."""

import re
from pathlib import Path

import pytest

GUIDE = (Path(__file__).parents[2] / "fedsim" / "README.md").read_text(encoding="utf-8")
BLOCKS = {text.split(".py", 1)[0][2:]: text for text in re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL)}
REGISTERED = {
    "prox": "client.kind='fedprox'",
    "momentum": "strategy.kind='fedavgm'",
    "backwards": "attack.kind='sign_flip'",
}


def table_of(name):
    """The `key = { ... }` that a block's first line shows, as an override."""
    found = re.match(r"# \S+?\.py[^:]*: (\w+ = \{.*\})$", BLOCKS[name].splitlines()[0])
    assert found is not None
    return found[1].replace(" = ", "=", 1)


@pytest.mark.parametrize("name", REGISTERED)
def test_an_example_does_what_the_registered_plugin_does(fedsim, folder, sets, name):
    (folder / f"{name}.py").write_text(BLOCKS[name], encoding="utf-8")
    own, (key, kind) = table_of(name), REGISTERED[name].split("=")
    common = sets("client={}", "engine.dtype='float64'", "rounds=3")
    mine = fedsim("run", "quick.toml", *common, "--set", own, out="mine")
    assert mine.code == 0, mine.err
    theirs = fedsim("run", "quick.toml", *common, "--set", own, "--set", f"{key}={kind}", out="theirs")
    assert theirs.code == 0, theirs.err
    plain = fedsim("run", "quick.toml", *common, out="plain")
    assert mine.rounds[-1]["metrics"]["train_loss"] == pytest.approx(
        theirs.rounds[-1]["metrics"]["train_loss"], rel=1e-9
    )
    assert mine.sha != plain.sha
    assert mine.rounds[-1]["metrics"]["train_loss"] != plain.rounds[-1]["metrics"]["train_loss"]


def test_every_example_is_tested():
    assert set(BLOCKS) == set(REGISTERED)
