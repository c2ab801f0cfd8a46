"""Whole sweeps on real data: what is played, kept, shared and told."""

import json
import sys

import pytest

from fedsim.errors import ConfigError, FedsimError
from fedsim.run import code

TWO = '[sweep]\n"client.optimizer.learning_rate" = [0.05, 0.2]\n'
ATTACKED = """
attack = { kind = "honest", malicious = 1, window = [1, 2] }
[sweep.attack]
none = "honest"
loud = { kind = "plugins_of_a_sweep:Patch", scale = 5.0 }
soft = { kind = "plugins_of_a_sweep:Patch", scale = 0.5 }
[sweep.defence]
mean = { strategy = "fedavg" }
median = { strategy = "median" }
[sweep.report]
compare = "none"
"""


def rows(folder):
    return [json.loads(line) for line in (folder / "cells.jsonl").read_text().splitlines()]


def stamps(folder):
    """When each run's rounds were written."""
    return {path: path.stat().st_mtime_ns for path in folder.glob("*/*/*/rounds.jsonl")}


def models(folder):
    found = rows(folder)
    return [json.loads((folder / row["folder"] / "result.json").read_text())["model_sha256"] for row in found]


def test_a_sweep_tells_what_it_found_and_a_second_one_plays_nothing(write, play, folder, capsys):
    file = write(TWO)
    assert play(file) == 0
    out = capsys.readouterr().out
    assert "| client.optimizer.learning_rate | test_accuracy.last |" in out
    assert "4 runs: 4 completed." in out
    found = rows(folder / "out")
    assert [(row["axes"]["client.optimizer.learning_rate"], row["seed"]) for row in found] == [
        ("0.05", 0),
        ("0.05", 1),
        ("0.2", 0),
        ("0.2", 1),
    ]
    assert all(0 < row["metrics"]["test_accuracy.last"] < 1 for row in found)
    state = json.loads((folder / "out" / "sweep.json").read_text())
    assert state["complete"]
    before = stamps(folder / "out")
    assert play(file, resume=True) == 0
    assert stamps(folder / "out") == before
    assert capsys.readouterr().out == out


def test_a_changed_file_plays_only_what_is_new(write, play, folder):
    assert play(write(TWO)) == 0
    before = stamps(folder / "out")
    assert play(write(TWO.replace("0.05, 0.2", "0.2, 0.4"))) == 0
    after = stamps(folder / "out")
    assert len(after) == 6
    assert before.items() <= after.items()
    assert [row["axes"]["client.optimizer.learning_rate"] for row in rows(folder / "out")] == ["0.2"] * 2 + [
        "0.4"
    ] * 2


def test_a_cell_is_the_run_that_its_settings_describe(write, play, folder):
    from fedsim.launch import launch

    assert play(write(TWO)) == 0
    plain = write("", name="plain.toml")
    sets = ["client.optimizer.learning_rate=0.2", "seeds=[1]"]
    (outcome,) = launch(plain, sets, out=folder / "plain", talk=False)
    assert models(folder / "out")[3] == outcome.result["model_sha256"]


def test_filters_leave_the_rest_missing_and_say_so(write, play, folder, capsys):
    file = write(TWO)
    assert play(file, filters=["client.optimizer.learning_rate=0.2"], seeds=[1]) == 0
    out = capsys.readouterr().out
    assert "missing" in out
    assert "(1 of 2)" in out
    assert "4 runs: 3 missing, 1 completed." in out
    with pytest.raises(ConfigError, match="the file has no seed 5"):
        play(file, seeds=[5])


def test_an_attack_s_clean_run_is_shared_and_played_once(write, play, folder, capsys):
    assert play(write(ATTACKED), "seeds=[0]") == 0
    clean = sorted((folder / "out" / "clean").glob("*/seed-0"))
    assert len(clean) == 2  # one per defence
    assert not list((folder / "out" / "runs").glob("*/*/clean"))
    assert {row["folder"] for row in rows(folder / "out") if row["axes"]["attack"] == "none"} == {
        str(path.relative_to(folder / "out")) for path in clean
    }
    assert len(stamps(folder / "out")) == 2 * 3  # an honest cell is not played twice
    found = {(row["axes"]["attack"], row["axes"]["defence"]): row["metrics"] for row in rows(folder / "out")}
    for defence in ("mean", "median"):
        honest = found["none", defence]["test_accuracy.last"]
        for attack in ("loud", "soft"):
            metrics = found[attack, defence]
            assert metrics["clean_test_accuracy.last"] == honest
            assert metrics["test_accuracy.change"] == metrics["test_accuracy.last"] - honest
            assert 0 <= metrics["attack_success.at_stop"] <= 1
    out = capsys.readouterr().out
    assert "**attack_success.at_stop**" in out
    assert "**test_accuracy.last, paired by seed; Holm over 4**" in out
    before = stamps(folder / "out")
    more = ATTACKED.replace(
        "[sweep.defence]", 'extra = { kind = "plugins_of_a_sweep:Patch" }\n[sweep.defence]'
    )
    assert play(write(more), "seeds=[0]") == 0
    after = stamps(folder / "out")
    assert len(after) == len(before) + 2
    assert before.items() <= after.items()
    pictures = {path.name for path in (folder / "out").glob("*.png")}
    assert {
        "curves-attack.png",
        "heatmap-test_accuracy.last.png",
        "heatmap-attack_success.at_stop.png",
    } <= pictures


def test_a_failing_cell_is_kept_with_its_reason_and_the_others_are_played(write, play, folder, capsys):
    tables = "[sweep.client]\nfine = { epochs = 1 }\n"
    tables += 'broken = { kind = "plugins_of_a_sweep:Trouble", raise_in = 2 }\n'
    file = write(tables)
    assert play(file) == 1
    seen = capsys.readouterr()
    assert "failed" in seen.out
    assert "does not want to" in seen.err
    found = rows(folder / "out")
    assert [row["status"] for row in found] == ["completed"] * 2 + ["failed"] * 2
    assert "does not want to" in found[2]["reason"]
    assert not found[2]["metrics"]
    assert not json.loads((folder / "out" / "sweep.json").read_text())["complete"]


def test_a_clean_run_that_fails_fails_the_cells_that_need_it(write, play, folder):
    tables = ATTACKED.replace(
        "[sweep.defence]",
        "[sweep.defence]\nx = { client.kind = 'plugins_of_a_sweep:Trouble', client.raise_in = 2 }",
    )
    assert play(write(tables), "seeds=[0]", filters=["defence=x,mean", "attack=loud"]) == 1
    told = {(row["axes"]["attack"], row["axes"]["defence"]): row for row in rows(folder / "out")}
    assert told["loud", "mean"]["status"] == "completed"
    assert told["loud", "x"]["status"] == "failed"
    assert "clean run beside the attack failed" in told["loud", "x"]["reason"]
    assert told["none", "x"]["status"] == "failed"  # it is that clean run
    assert told["none", "x"]["reason"].startswith("Round 2: 4 of 4 clients failed to train")
    assert told["soft", "x"]["status"] == "missing"


def test_an_unmet_expectation_is_exit_code_3(write, play):
    file = write("[expect]\ntest_accuracy = { at_least = 0.999 }\n" + TWO)
    assert play(file) == 3
    assert play(write(TWO)) == 0  # judged by today's file


def test_bad_input_is_one_line_and_exit_code_2_and_leaves_nothing(write, folder, play):
    with pytest.raises(FedsimError) as refused:
        play(write("[sweep]\nstrategy = ['fedavg', 'krumm']\n"))
    assert refused.value.exit_code == 2
    assert not (folder / "out").exists()


def test_an_attack_that_one_cell_refuses_is_refused_before_any_is_played(write, folder, play):
    wrong = 'attack = { kind = "badnets", malicious = 1 }\n[sweep]\n"attack.target" = [0, 99]\n'
    with pytest.raises(ConfigError, match=r"cell attack.target=99: attack.target must be a label"):
        play(write(wrong))
    assert not (folder / "out").exists()


def test_folders_that_hold_something_else_are_refused(write, folder, play):
    (folder / "full").mkdir()
    (folder / "full" / "letter").write_text("dear")
    with pytest.raises(ConfigError, match="holds something that is no sweep"):
        play(write(TWO), out="full")
    with pytest.raises(FedsimError, match="holds no sweep to resume"):
        play(write(TWO), out="empty", resume=True)
    with pytest.raises(ConfigError, match="--jobs: wanted at least 1"):
        play(write(TWO), jobs=0)


def test_honest_cells_alone_are_ordinary_runs(write, play, folder):
    honest = 'attack = { kind = "honest", malicious = 1 }\n[sweep]\nrounds = [1, 2]\n'
    assert play(write(honest), "seeds=[0]") == 0
    assert all(row["folder"].startswith("runs/") for row in rows(folder / "out"))


def test_an_honest_cell_is_held_against_its_expectation(write, play, folder):
    """Though it is the clean run beside the others, which expects nothing."""
    table = ATTACKED + "[expect.test_accuracy]\nat_least = 0.999\n"
    assert play(write(table), "seeds=[0]") == 3
    found = {row["status"] for row in rows(folder / "out") if row["axes"]["attack"] == "none"}
    assert found == {"expectation_failed"}


def test_what_other_code_made_is_played_again_or_kept_on_request(write, play, folder, capsys):
    sys.modules.pop("plugins_of_a_sweep", None)  # of another test's folder
    file, plugin = write(ATTACKED), folder / "plugins_of_a_sweep.py"
    assert play(file, "seeds=[0]") == 0
    first, told = stamps(folder / "out"), rows(folder / "out")
    plugin.write_text(plugin.read_text() + "\n# changed\n")
    code._module_digest.cache_clear()
    capsys.readouterr()
    assert play(file, "seeds=[0]", any_code=True) == 0
    assert "fedsim: runs made by other code: 4, kept as asked." in capsys.readouterr().err
    assert stamps(folder / "out") == first
    assert play(file, "seeds=[0]", filters=["attack=loud"]) == 0
    assert (
        "fedsim: runs made by other code: 2, played again; --any-code keeps them." in capsys.readouterr().err
    )
    status = {row["axes"]["attack"]: row["status"] for row in rows(folder / "out")}
    assert status == {"none": "completed", "loud": "completed", "soft": "missing"}
    assert play(file, "seeds=[0]") == 0
    assert "runs made by other code: 2, played" in capsys.readouterr().err
    again = stamps(folder / "out")
    assert {path for path in first if again[path] == first[path]} == set(
        (folder / "out" / "clean").glob("*/*/rounds.jsonl")
    )
    assert [row["metrics"] for row in rows(folder / "out")] == [row["metrics"] for row in told]


def test_a_change_of_ours_makes_all_runs_stale(write, play, folder, monkeypatch):
    file = write(TWO)
    assert play(file, "seeds=[0]") == 0
    first = stamps(folder / "out")
    monkeypatch.setattr("fedsim.run.code._AT_START", "of another version")
    assert play(file, "seeds=[0]") == 0
    assert not set(first.items()) & set(stamps(folder / "out").items())


def test_what_nothing_settles_is_exit_code_1(write, play, capsys):
    """As where a metric is known by name, but no run has measured it."""
    table = (
        TWO + '[sweep.report]\ntune = "client.optimizer.learning_rate"\nby = "client_diagnostic_own.best"\n'
    )
    table = table.replace("[sweep]", '[sweep]\nstrategy = ["fedavg"]')
    assert play(write(table), "seeds=[0]") == 1
    err = capsys.readouterr().err
    assert (
        "fedsim: sweep.report.by: 'client_diagnostic_own.best' was not measured at strategy=fedavg, so that"
        in err
    )
