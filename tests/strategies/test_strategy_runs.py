"""Every registered rule in whole runs: its state goes through an interruption, and it learns."""

from pathlib import Path

import pytest

from fedsim import plugins
from fedsim.config import parse
from fedsim.run.outcome import Silent
from fedsim.run.runner import run
from fedsim.run.transports import LocalTransport

OPTIONS = {
    "trimmed_mean": {"byzantine": 1},
    "krum": {"byzantine": 1},
    "multi_krum": {"byzantine": 1},
    "centred_clipping": {"radius": 2.0, "iterations": 2},
    "norm_clipping": {"bound": 2.0, "noise": 1e-4},
    "rlr": {"threshold": 2},
    "deepsight": {"samples": 64},
    "fedadam": {"learning_rate": 0.03},
    "fedyogi": {"learning_rate": 0.03, "rule": "foolsgold"},
}
# With state, noise, or training of the server's own; the others are `slow`: test_laws.py saves and loads all.
EVERY_TIME = ("centred_clipping", "fedadam", "fedavgm", "fedyogi", "flame", "fltrust", "foolsgold")
KINDS = [
    kind if kind in EVERY_TIME else pytest.param(kind, marks=pytest.mark.slow)
    for kind in plugins.available("strategies")
]


class Interrupt(Silent):
    """Somebody presses Ctrl-C after the second round."""

    def round_finished(self, record):
        if record["round"] == 2:
            raise KeyboardInterrupt


@pytest.fixture
def play(tmp_path):
    """One run of 3 rounds on digits: 8 clients, 6 in each round."""

    def one(folder, strategy, observer=None, *, resume=False, **changes):
        experiment = parse(
            {
                "name": "rules",
                "rounds": 3,
                "seeds": [3],
                "data": {"kind": "digits"},
                "federation": {"clients": 8, "clients_per_round": 6, "partition": "iid", "trusted": 150},
                "model": "logistic",
                "client": {
                    "kind": "supervised",
                    "epochs": 4,
                    "optimizer": {"kind": "sgd", "learning_rate": 0.2},
                },
                "engine": {"workers": 1},
                "strategy": strategy,
                **changes,
            }
        )
        transport = LocalTransport(Path("experiment.toml"), ())
        (outcome,) = run(
            experiment, tmp_path / folder, federation_of=transport, observer=observer, resume=resume
        )
        return outcome

    return one


@pytest.mark.parametrize("kind", KINDS)
def test_interrupted_and_resumed_the_model_is_that_of_an_uninterrupted_run(kind, play):
    strategy = {"kind": kind, **OPTIONS.get(kind, {})}
    whole = play("whole", strategy)
    with pytest.raises(KeyboardInterrupt):
        play("cut", strategy, Interrupt())
    resumed = play("cut", strategy, resume=True)
    assert resumed.exit_code == whole.exit_code == 0, resumed.result
    assert resumed.result["model_sha256"] == whole.result["model_sha256"]
    assert whole.result["metrics"]["test_accuracy"]["last"]["value"] > 0.55


def test_mixing_in_front_of_a_rule_changes_what_it_does(play):
    alone = play("alone", {"kind": "krum", "byzantine": 1})
    mixed = play("mixed", {"kind": "krum", "byzantine": 1, "before": [{"kind": "nnm", "byzantine": 1}]})
    assert mixed.exit_code == 0
    assert mixed.result["model_sha256"] != alone.result["model_sha256"]
    accuracies = [one.result["metrics"]["test_accuracy"]["last"]["value"] for one in (alone, mixed)]
    assert accuracies[1] > accuracies[0]
