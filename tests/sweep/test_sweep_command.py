"""Whole sweeps on real data: what is played, kept, shared and told."""

import json

import pytest

from fedsim.errors import ConfigError, FedsimError

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
    assert told["none", "x"]["status"] == "missing"


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
