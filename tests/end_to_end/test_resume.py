"""A run that was stopped anywhere goes on with the same bits."""

import json

import pytest

TWENTY = ["rounds=20", "client.kind=methods_of_a_test:Counting"]


@pytest.mark.parametrize("limit", ["memory", "disk"])
def test_killed_in_round_7_of_20_and_resumed_the_hash_is_that_of_an_uninterrupted_run(
    fedsim, spawn, sets, tmp_path, limit
):
    flag = tmp_path / "flag"
    memory = 0 if limit == "disk" else 1
    killing = sets(
        *TWENTY, "client.kill_in_round=7", f"client.flag={flag}", f"engine.private_memory={memory}"
    )
    killed = spawn("run", "quick.toml", *killing)
    assert killed.code == -9
    assert [record["round"] for record in killed.rounds] == [1, 2, 3, 4, 5, 6]
    assert not (killed.folder / "result.json").exists()
    assert (limit == "disk") == (killed.folder / "private").is_dir()
    with (killed.folder / "rounds.jsonl").open("a") as stream:
        stream.write('{"round": 7, "coh')  # as if killed in the middle of a line

    resumed = fedsim("run", "quick.toml", *killing, "--resume")
    assert resumed.code == 0, resumed.err
    assert "resumed after round 6" in resumed.out
    whole = fedsim("run", "quick.toml", *killing, out="whole")
    assert resumed.sha == whole.sha
    assert resumed.result["metrics"] == whole.result["metrics"]
    assert [record["round"] for record in resumed.rounds] == list(range(1, 21))
    for one, other in zip(resumed.rounds, whole.rounds, strict=True):
        assert one | {"seconds": 0} == other | {"seconds": 0}


@pytest.mark.parametrize("limit", ["memory", "disk"])
def test_tier_t0_keeps_private_tensors_over_a_resume_too(fedsim, spawn, sets, tmp_path, limit):
    memory = 0 if limit == "disk" else 1
    changes = ("rounds=8", "client.kind=methods_of_a_test:Counting", f"engine.private_memory={memory}")
    killing = sets(*changes, "client.kill_in_round=5", f"client.flag={tmp_path / 'flag'}")
    killed = spawn("run", "quick.toml", *killing, *sets("engine.tier=T0"))
    assert (killed.code, len(killed.rounds)) == (-9, 4)
    assert (limit == "disk") == (killed.folder / "private").is_dir()
    resumed = fedsim("run", "quick.toml", *killing, *sets("engine.tier=T0"), "--resume")
    assert resumed.code == 0, resumed.err
    whole = fedsim("run", "quick.toml", *killing, *sets("engine.tier=T1"), out="whole")
    assert resumed.sha == whole.sha
    assert resumed.result["metrics"] == whole.result["metrics"]


def test_a_damaged_checkpoint_is_refused_in_one_line(fedsim, spawn, sets, tmp_path):
    killing = sets(*TWENTY, "client.kill_in_round=3", f"client.flag={tmp_path / 'flag'}")
    path = spawn("run", "quick.toml", *killing).folder / "checkpoint.safetensors"
    whole = path.read_bytes()
    for content, words in (
        (whole[:-1] + bytes([whole[-1] ^ 1]), "was damaged or changed after it was written"),
        (whole[: len(whole) // 2], "not a checkpoint of fedsim"),
    ):
        path.write_bytes(content)
        done = fedsim("run", "quick.toml", *killing, "--resume")
        assert (done.code, done.err.count("\n")) == (2, 1)
        assert words in done.err
    path.write_bytes(whole)
    assert fedsim("run", "quick.toml", *killing, "--resume").code == 0


def test_private_tensors_matter_to_this_test(fedsim, sets, tmp_path):
    """Were the private tensors lost on resume, the hash would be another: it depends on them."""
    plain = fedsim("run", "quick.toml", out="plain")
    counting = fedsim("run", "quick.toml", *sets("client.kind=methods_of_a_test:Counting"), out="counting")
    assert plain.sha != counting.sha


def test_a_checkpoint_every_few_rounds_repeats_the_rounds_after_it(fedsim, spawn, sets, tmp_path):
    killing = sets(
        *TWENTY, "client.kill_in_round=7", f"client.flag={tmp_path / 'flag'}", "checkpoint.every=4"
    )
    assert spawn("run", "quick.toml", *killing).code == -9
    resumed = fedsim("run", "quick.toml", *killing, "--resume")
    assert "resumed after round 4" in resumed.out
    assert [record["round"] for record in resumed.rounds] == list(range(1, 21))
    assert resumed.sha == fedsim("run", "quick.toml", *killing, out="whole").sha


@pytest.mark.slow
def test_workers_may_change_between_stop_and_resume(fedsim, spawn, sets, tmp_path):
    killing = sets(*TWENTY, "client.kill_in_round=7", f"client.flag={tmp_path / 'flag'}")
    assert spawn("run", "quick.toml", *killing).code == -9
    resumed = spawn("run", "quick.toml", *killing, *sets("engine.workers=2"), "--resume")
    assert resumed.code == 0, resumed.err
    assert resumed.sha == fedsim("run", "quick.toml", *killing, out="whole").sha


def test_a_changed_experiment_is_refused(fedsim, sets):
    assert fedsim("run", "quick.toml").code == 0
    changed = fedsim("run", "quick.toml", *sets("rounds=5"), "--resume")
    assert changed.code == 2
    assert "holds a finished run of experiment" in changed.err
    assert changed.err.count("\n") == 1


def test_another_seed_is_not_given_the_result_that_is_there(fedsim, sets):
    assert fedsim("run", "quick.toml", *sets("seeds=[0]")).code == 0
    other = fedsim("run", "quick.toml", *sets("seeds=[1]"), "--resume")
    assert (other.code, other.err.count("\n")) == (2, 1)
    assert "holds a finished run of seed 0, but the file now asks for seed 1" in other.err


def test_rounds_without_a_checkpoint_are_replaced_by_the_same_experiment_alone(fedsim, sets):
    plain = ("checkpoint.every=0", "rounds=2")
    first = fedsim("run", "quick.toml", *sets(*plain))
    (first.folder / "result.json").unlink()
    changed = fedsim("run", "quick.toml", *sets(*plain, "client.optimizer.momentum=0.5"), "--resume")
    assert (changed.code, changed.err.count("\n")) == (2, 1)
    assert "holds rounds of experiment" in changed.err
    assert fedsim("run", "quick.toml", *sets(*plain), "--resume").sha == first.sha


def test_a_damaged_manifest_is_refused_in_one_line(fedsim, sets):
    folder = fedsim("run", "quick.toml", *sets("rounds=2")).folder
    (folder / "result.json").unlink()
    (folder / "manifest.json").write_text("{")
    done = fedsim("run", "quick.toml", *sets("rounds=2"), "--resume")
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert "manifest.json: is not JSON" in done.err


def test_a_changed_experiment_is_refused_in_the_middle_too(fedsim, spawn, sets, tmp_path):
    killing = sets(*TWENTY, "client.kill_in_round=3", f"client.flag={tmp_path / 'flag'}")
    before = spawn("run", "quick.toml", *killing)
    assert before.code == -9
    changed = fedsim("run", "quick.toml", *killing, *sets("client.optimizer.momentum=0.5"), "--resume")
    assert changed.code == 2
    assert "checkpoint.safetensors: belongs to experiment" in changed.err
    assert len(changed.rounds) == 2


def test_a_finished_run_is_shown_again_and_not_run_again(fedsim):
    first = fedsim("run", "quick.toml")
    again = fedsim("run", "quick.toml", "--resume")
    assert (again.code, again.sha) == (0, first.sha)
    assert again.rounds == first.rounds


def test_finished_seeds_are_kept_and_missing_ones_run(fedsim, sets):
    first = fedsim("run", "quick.toml", *sets("seeds=[3,4]"))
    assert first.code == 0, first.err
    kept = json.loads((first.folder / "seed-3" / "rounds.jsonl").read_text().splitlines()[0])
    more = fedsim("run", "quick.toml", *sets("seeds=[3,4,5]"), "--resume")
    assert more.code == 0, more.err
    summary = json.loads((more.folder / "summary.json").read_text())
    assert list(summary["model_sha256"]) == ["3", "4", "5"]
    assert json.loads((more.folder / "seed-3" / "rounds.jsonl").read_text().splitlines()[0]) == kept
    assert summary["metrics"]["test_accuracy"]["last"]["n"] == 3


def test_nothing_to_resume(fedsim):
    done = fedsim("run", "quick.toml", "--resume")
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert "no such run to resume" in done.err


def test_a_finished_run_is_held_against_the_expectations_of_today(fedsim, sets):
    assert fedsim("run", "quick.toml").code == 0
    hard = fedsim("run", "quick.toml", *sets("expect.test_accuracy={at_least=1.0}"), "--resume")
    assert (hard.code, hard.result["status"]) == (3, "expectation_failed")
    easy = fedsim("run", "quick.toml", *sets("expect.test_accuracy={at_least=0.0}"), "--resume")
    assert (easy.code, easy.result["status"]) == (0, "completed")
