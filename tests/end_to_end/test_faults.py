"""Faults of FIELD.md, through the real command: loud, named, and with an exit code."""

import json

import pytest
import torch

FAULTY = "client.kind=methods_of_a_test:Faulty"


def test_one_client_that_sends_nan_is_refused_and_named(fedsim, sets):
    done = fedsim("run", "quick.toml", *sets(FAULTY, "client.wild=[1]", "failures.max_failed_fraction=0.5"))
    assert done.code == 0, done.err
    failures = done.result["failures"]
    assert {failure["partition"] for failure in failures} == {1}
    assert {failure["kind"] for failure in failures} == {"refused"}
    assert "not finite" in done.out
    assert all(record["metrics"]["test_loss"] is not None for record in done.rounds)


def test_by_default_a_refused_client_fails_the_run(fedsim, sets):
    done = fedsim("run", "quick.toml", *sets(FAULTY, "client.wild=[0,1,2]"))
    assert done.code == 1
    assert done.result["status"] == "failed"
    assert "failures.max_failed_fraction = 0 allows" in done.result["reason"]
    assert "Traceback" not in done.err


@pytest.mark.parametrize("fraction", ["0.0", "1.0"])
def test_all_clients_raising_fails_the_run_whatever_the_policy(fedsim, sets, fraction):
    raising = sets(FAULTY, "client.raising=[0,1,2,3,4,5]", f"failures.max_failed_fraction={fraction}")
    done = fedsim("run", "quick.toml", *raising)
    assert done.code == 1
    result = done.result
    assert (result["status"], result["rounds"]) == ("failed", 0)
    assert "no reply is left" in result["reason"]
    assert len(result["failures"]) == 4
    assert "does not want to" in result["failures"][0]["traceback"]
    assert "seed 0: failed: Round 1: 4 of 4 clients failed to train" in done.err


def test_a_client_that_ends_its_process_is_named_and_the_others_finish(spawn, sets):
    dying = sets(
        FAULTY, "client.dying=[2]", "failures.max_failed_fraction=0.5", "engine.workers=2", "rounds=1"
    )
    done = spawn(
        "run", "quick.toml", *dying, *sets("federation.clients_per_round=6", "evaluate.clients=none")
    )
    assert done.code == 0, done.err
    (failure,) = done.result["failures"]
    assert (failure["partition"], failure["kind"]) == (2, "died")
    assert done.rounds[0]["accepted"] == [0, 1, 3, 4, 5]
    assert done.result["reproducible"] is False
    assert done.result["events"][-1]["remedy"] == "given up"
    failed = spawn(
        "run", "quick.toml", *dying, *sets("failures.max_failed_fraction=0.0", "engine.tier=T0"), out="failed"
    )
    assert (failed.code, failed.result["status"]) == (1, "failed")
    assert {event["what"] for event in failed.result["events"]} == {"died"}


@pytest.mark.parametrize("tier", ["T1", pytest.param("T0", marks=pytest.mark.slow)])
def test_a_death_that_a_retry_cured_is_told_and_changes_nothing(spawn, fedsim, sets, tmp_path, tier):
    dying = sets(
        "client.kind=methods_of_a_test:Counting",
        "client.kill_in_round=2",
        f"client.flag={tmp_path / 'flag'}",
        f"engine.tier={tier}",
    )
    done = spawn("run", "quick.toml", *dying, *sets("engine.workers=2"))
    assert done.code == 0, done.err
    result = done.result
    (event, *_) = result["events"]
    assert (event["round"], event["what"], event["remedy"]) == (2, "died", "retried")
    assert event["worker"] in (0, 1)
    assert "SIGKILL" in event["message"]
    assert done.rounds[1]["events"][0] == event
    assert result["failures"] == []
    assert result["reproducible"] is True
    assert "seed 0: event: round 2, worker" in done.out
    assert done.sha == fedsim("run", "quick.toml", *dying, out="again").sha  # the flag is there: nobody dies


def test_the_manifest_holds_the_device_that_auto_became(fedsim):
    done = fedsim("run", "quick.toml")
    device = json.loads((done.folder / "manifest.json").read_text())["device"]
    found = "cuda" if torch.cuda.is_available() else "cpu"
    assert device["asked"] == "auto"
    assert device["clients"].startswith(found)
    assert device["server"] == found


def test_an_unmet_expectation_has_its_own_exit_code(fedsim, sets):
    done = fedsim("run", "quick.toml", *sets("expect.test_accuracy.at_least=0.999"))
    assert done.code == 3
    assert done.result["status"] == "expectation_failed"
    assert "test_accuracy (last) is" in done.err
    assert done.sha == done.result["model_sha256"]


def test_a_met_expectation(fedsim, sets):
    done = fedsim("run", "quick.toml", *sets("expect.test_accuracy={at_least=0.01, statistic='best'}"))
    assert (done.code, done.result["expectations"][0]["met"]) == (0, True)


def test_one_failed_seed_of_two_fails_the_run_and_the_other_is_kept(fedsim, sets):
    raising = sets(FAULTY, "client.raising=[5]", "seeds=[0,1]", "rounds=1", "evaluate.clients=none")
    done = fedsim("run", "quick.toml", *raising, *sets("federation.clients_per_round=1"))
    status = json.loads((done.folder / "summary.json").read_text())["status"]
    assert status == {"0": "completed", "1": "failed"}  # seed 1 draws client 5
    assert done.code == 1


def test_a_rule_that_raises_fails_the_run_and_is_named_in_the_ledger(fedsim, sets):
    done = fedsim("run", "quick.toml", *sets("strategy={kind='methods_of_a_test:FaultyRule', where='step'}"))
    assert done.code == 1
    assert done.err.count("\n") == 1
    assert "Round 1: FaultyRule.step raised SystemExit: 0 (methods_of_a_test.py, line" in done.err
    (failure,) = done.result["failures"]
    assert (failure["kind"], failure["partition"]) == ("exception", None)
    assert "in step" in failure["traceback"]
