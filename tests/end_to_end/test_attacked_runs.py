"""An attack through the whole platform: corrupted in workers, measured against a clean run, resumable."""

import json
import sys

import pytest

# A backdoor written for the test: it remembers models, stamps a corner, and counts what it saw.
ATTACK = '''
import os
import signal
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import torch

from fedsim.contracts import Batch
from fedsim.threat import Knowledge, Passive


@dataclass(frozen=True, kw_only=True)
class Corner(Passive):
    """Stamps a corner on half of every batch and asks for one label."""

    knows: ClassVar[Knowledge] = Knowledge.COLLUDERS
    target: int = 0
    strength: float = 5.0
    kill_in_round: int = 0
    flag: str = ""

    def init(self, threat, rng):
        return {"seen": torch.zeros(()), "pattern": self.strength * torch.ones(3)}

    def observe(self, state, view, rng):
        if view.round == self.kill_in_round and not Path(self.flag).exists():
            Path(self.flag).write_text("killed")
            os.kill(os.getpid(), signal.SIGKILL)
        drawn = torch.rand(3, generator=rng)  # its chance must survive a resume
        return {"seen": state["seen"] + view.model.double().abs().mean(), "pattern": state["pattern"] + drawn}

    def corrupt(self, state, member, program, data):
        def changed(phase):
            def draw(batch, rng):
                clean, noise = (batch, {}) if phase.draw is None else phase.draw(batch, rng)
                half = len(clean.y) // 2
                bad = self.poison(state, Batch(clean.x[:half], clean.y[:half]))
                return clean._replace(
                    x=torch.cat([bad.x, clean.x[half:]]), y=torch.cat([bad.y, clean.y[half:]])
                ), noise

            return replace(phase, draw=draw)

        return replace(program, phases=tuple(changed(phase) for phase in program.phases)), data

    def poison(self, state, batch):
        x = batch.x.clone()
        x[..., 0, :3] = state["pattern"]
        return batch._replace(x=x, y=torch.full_like(batch.y, self.target))
'''

ATTACKED = (
    "rounds=8",
    "attack={kind='attack_of_a_test:Corner', malicious=2, participation='forced', window=[2, 5]}",
)


@pytest.fixture
def attacked(folder):
    (folder / "attack_of_a_test.py").write_text(ATTACK, encoding="utf-8")


@pytest.mark.usefixtures("attacked")
def test_an_attack_is_measured_against_a_clean_run_of_the_same_cohorts(fedsim, sets):
    run = fedsim("run", "quick.toml", *sets(*ATTACKED))
    assert run.code == 0, run.err
    told = run.result["metrics"]
    assert told["attack_success"]["at_stop"] > 0.8
    assert told["attack_success"]["floor"] < 0.5 < told["attack_success"]["auc50"]
    assert told["attack_success"]["auc_rounds"] == 4  # the stop and the three rounds after it
    assert set(told["attack_lifespan"]) == {"rounds", "smoothed", "still_alive", "smoothed_still_alive"}
    assert told["client_attack_success_benign"]["last"]["value"] > 0.5
    assert run.result["defence_active"] is False  # FedAvg is the plain mean
    assert told["detector"]["recall"] == 0.0
    clean = [json.loads(line) for line in (run.folder / "clean" / "rounds.jsonl").read_text().splitlines()]
    for mine, honest in zip(run.rounds, clean, strict=True):
        assert mine["cohort"] == honest["cohort"]
        assert mine["metrics"]["clean_test_accuracy"] == honest["metrics"]["test_accuracy"]
        assert ("attack" in mine) == (2 <= mine["round"] <= 5)
    assert run.rounds[0]["metrics"]["test_accuracy"] == clean[0]["metrics"]["test_accuracy"]
    assert run.rounds[-1]["metrics"]["test_accuracy"] != clean[-1]["metrics"]["test_accuracy"]


@pytest.mark.usefixtures("attacked")
def test_success_counts_examples_whose_label_the_attack_changes(fedsim, sets):
    """A target class that is always answered: success is 1, though no example of that class counts."""
    run = fedsim("run", "quick.toml", *sets(*ATTACKED, "attack.strength=200.0", "attack.target=3"))
    assert run.result["metrics"]["attack_success"]["at_stop"] == 1.0


@pytest.mark.usefixtures("attacked")
def test_workers_and_tiers_agree_under_attack(fedsim, sets):
    one = fedsim("run", "quick.toml", *sets(*ATTACKED), out="one")
    two = fedsim("run", "quick.toml", *sets(*ATTACKED, "engine.workers=2"), out="two")
    stacked = fedsim("run", "quick.toml", *sets(*ATTACKED, "engine.tier=T2"), out="stacked")
    assert one.sha == two.sha
    assert one.result["metrics"] == two.result["metrics"]
    (detour,) = stacked.result["detours"]
    assert detour["reason"] == "it is corrupted by the attack"
    assert stacked.result["reproducible"]
    mine, theirs = (run.rounds[-1]["metrics"]["test_accuracy"] for run in (one, stacked))
    assert abs(mine - theirs) < 0.02


@pytest.mark.usefixtures("attacked")
@pytest.mark.parametrize("round_", [1, 4])
def test_killed_under_attack_and_resumed_the_hash_is_the_same(fedsim, spawn, sets, tmp_path, round_):
    killing = sets(*ATTACKED, f"attack.kill_in_round={round_}", f"attack.flag={tmp_path / 'flag'}")
    assert spawn("run", "quick.toml", *killing).code == -9
    resumed = fedsim("run", "quick.toml", *killing, "--resume")
    whole = fedsim("run", "quick.toml", *killing, out="whole")
    assert resumed.code == 0, resumed.err
    assert resumed.sha == whole.sha
    assert resumed.result["metrics"] == whole.result["metrics"]


@pytest.mark.usefixtures("attacked")
def test_without_the_clean_run_there_is_no_floor(fedsim, sets):
    run = fedsim("run", "quick.toml", *sets(*ATTACKED, "attack.clean_run=false"))
    told = run.result["metrics"]["attack_success"]
    assert (told["floor"], told["auc50"]) == (None, None)
    assert told["at_stop"] > 0.8
    assert not (run.folder / "clean").exists()


@pytest.mark.usefixtures("attacked")
def test_an_attack_inside_clients_is_refused_where_messages_carry_it(fedsim, sets):
    run = fedsim("run", "quick.toml", *sets(*ATTACKED, "engine.tier=T0"))
    assert run.code == 2
    assert "Corner acts inside the malicious clients, which needs engine.tier" in run.err
    assert not run.folder.exists()


def test_the_honest_attack_is_the_run_itself(fedsim, sets):
    honest = sets("attack={kind='honest', malicious=2}")
    run = fedsim("run", "quick.toml", *honest, out="honest")
    assert run.sha == fedsim("run", "quick.toml", out="plain").sha
    assert not (run.folder / "clean").exists()
    scores = run.result["metrics"]["detector"]
    assert (scores["recall"], scores["f1"], scores["false_positive_rate"]) == (None, None, 0.0)


@pytest.mark.usefixtures("attacked")
@pytest.mark.parametrize("damage", ["delete", "truncate", "swap"])
def test_a_damaged_clean_model_is_refused_and_not_measured_on(fedsim, spawn, sets, tmp_path, damage):
    killing = sets(*ATTACKED, "attack.kill_in_round=4", f"attack.flag={tmp_path / 'flag'}")
    killed = spawn("run", "quick.toml", *killing)
    models = killed.folder / "clean" / "models"
    victim, other = models / "round-00006.safetensors", models / "round-00002.safetensors"
    if damage == "delete":
        victim.unlink()
    else:
        victim.write_bytes(victim.read_bytes()[:40] if damage == "truncate" else other.read_bytes())
    resumed = fedsim("run", "quick.toml", *killing, "--resume")
    assert resumed.code == 1
    assert "the clean run's model" in resumed.err + resumed.out
    assert "Traceback" not in resumed.err
    assert "to play that run again" in resumed.result["reason"]


@pytest.mark.usefixtures("attacked")
@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("return batch._replace(y=batch.y[:1])", "The attack's poison returned inputs of shape"),
        ("return batch._replace(x=batch.x * float('nan'))", "inputs that are not finite"),
        ("raise KeyError('nothing')", "the attack's poison raised KeyError"),
        ("return None", "the attack's poison raised AttributeError"),
    ],
)
def test_what_poison_returns_is_checked(fedsim, folder, sets, body, said):
    module = ATTACK.split("    def corrupt")[0] + f"    def poison(self, state, batch):\n        {body}\n"
    (folder / "poison_of_a_test.py").write_text(module.replace("class Corner", "class Bad"), encoding="utf-8")
    sys.modules.pop("poison_of_a_test", None)
    attack = "attack={kind='poison_of_a_test:Bad', malicious=2, window=[2, 3]}"
    run = fedsim("run", "quick.toml", *sets(attack))
    assert run.code == 1
    assert said in run.result["reason"]
    assert "Traceback" not in run.err


@pytest.mark.usefixtures("attacked")
def test_a_clean_run_that_is_none_says_which_folder_to_remove(fedsim, sets, tmp_path):
    run = fedsim("run", "quick.toml", *sets(*ATTACKED, "rounds=3", "attack.window=[2,3]"))
    junk = run.folder / "clean" / "result.json"
    for text in ("no JSON", "[]"):
        junk.write_text(text)
        (run.folder / "result.json").unlink(missing_ok=True)
        words = sets(*ATTACKED, "rounds=3", "attack.window=[2,3]")
        again = fedsim("run", "quick.toml", *words, "--resume")
        assert again.code == 2
        assert f"Remove {junk.parent} to play the clean run again." in again.err
        assert again.err.count("\n") == 1


def test_an_attack_of_nobody_is_told(fedsim, sets):
    nobody = sets("attack={kind='sign_flip', malicious=0}")
    run = fedsim("run", "quick.toml", *nobody)
    assert run.code == 0
    assert "seed 0: attack.malicious names nobody, so that everybody is honest" in run.out + run.err
    assert (
        "malicious: nobody; the attack does nothing" in fedsim("check", "quick.toml", *nobody, out=None).out
    )


def test_changed_code_is_told_on_resume(fedsim, sets, monkeypatch):
    words = sets("rounds=4")
    fedsim("run", "quick.toml", *words)
    monkeypatch.setattr("fedsim.run.code._AT_START", "of another version")
    kept = fedsim("run", "quick.toml", *words, "--resume")
    assert "seed 0: kept, though other code played it; start anew without --resume" in kept.out + kept.err
    (kept.folder / "result.json").unlink()
    continued = fedsim("run", "quick.toml", *words, "--resume")
    said = "seed 0: goes on after round 4 with changed code; start anew"
    assert said in continued.out + continued.err
