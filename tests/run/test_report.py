import io

import pytest
from rich.console import Console

from fedsim.report.curves import draw_curves
from fedsim.report.outcome_tables import mean_and_interval, number, print_outcomes
from fedsim.run.outcome import Outcome
from fedsim.run.summary import summary_of


def record(round_, value):
    spread = {
        "client_test_accuracy": {
            "clients": 2,
            "mean_over_clients": 0.5,
            "quantiles": {"0.1": 0.1, "0.9": 0.9},
        }
    }
    metrics = {"test_accuracy": value, "train_loss": 1 / round_}
    if round_ % 2 == 0:
        metrics["client_test_accuracy"] = value
    return {"round": round_, "metrics": metrics, "clients": spread if round_ % 2 == 0 else {}}


@pytest.mark.parametrize("seeds", [1, 3])
def test_curves_are_written_as_a_picture(tmp_path, seeds):
    runs = [[record(r, 0.1 * r + 0.01 * seed) for r in range(1, 7)] for seed in range(seeds)]
    draw_curves(runs, tmp_path / "curves.png", "title")
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert len(list(tmp_path.iterdir())) == 1


def test_runs_without_common_metrics_make_a_picture_too(tmp_path):
    draw_curves([[{"round": 1, "metrics": {"test_accuracy": None}}]], tmp_path / "curves.png", "title")
    assert (tmp_path / "curves.png").is_file()


def outcome(seed, tmp_path, status="completed"):
    point = {"value": 0.5 + seed / 10, "round": 3}
    metric = {"last": point | {"quantiles": {"0.1": 0.1, "0.5": 0.5, "0.9": 0.9}}, "best": point}
    failure = {"round": 1, "partition": 4, "kind": "refused", "message": "not finite"}
    result = {
        "seed": seed,
        "rounds": 3,
        "status": status,
        "reason": None,
        "metrics": {"client_test_accuracy": metric | {"validation_selected": None}},
        "failures": [failure],
        "reproducible": False,
        "not_reproducible_because": ["died"],
        "model_sha256": f"hash{seed}",
    }
    return Outcome(seed, status, tmp_path, result)


def shown(outcomes):
    console = Console(file=io.StringIO(), width=120)
    summary = summary_of("x", [one.result for one in outcomes]) if len(outcomes) > 1 else None
    print_outcomes(console, outcomes, summary)
    return console.file.getvalue()


def test_one_seed_shows_values_rounds_spread_faults_and_hash(tmp_path):
    text = shown([outcome(1, tmp_path)])
    for wanted in ("client_test_accuracy", "0.6000 (3)", "0.10/0.50/0.90", "client 4, refused: not finite"):
        assert wanted in text
    assert "model_sha256 hash1\n" in text
    assert "not reproducible to the bit (died)" in text


@pytest.mark.parametrize("seeds", [2, 9])
def test_several_seeds_show_the_mean_and_its_interval(tmp_path, seeds):
    text = shown([outcome(seed, tmp_path) for seed in range(seeds)])
    assert "±" in text
    assert all(f"model_sha256 hash{seed}  seed {seed}\n" in text for seed in range(seeds))


def test_events_and_detours_are_shown_and_many_are_counted(tmp_path):
    one = outcome(1, tmp_path)
    event = {
        "round": 2,
        "worker": 0,
        "what": "died",
        "clients": [3, 4],
        "remedy": "retried",
        "message": "gone",
    }
    detour = {"reason": "no kernel", "failed": False, "since_round": 1, "clients": 6}
    one.result.update(events=[event] * 5, detours=[detour])
    text = shown([one])
    assert text.count("event: round 2, worker 0 with clients 3, 4: died, retried: gone") == 3
    assert "and 2 more events, see result.json" in text
    assert "since round 1, 6 clients in all ran one at a time, not stacked: no kernel" in text


def test_numbers_as_they_are_shown():
    assert (number(None), number(0.98765), number(123.456)) == ("-", "0.9877", "123.5")
    assert mean_and_interval({"mean": 0.5, "half_width": None}) == "0.5000"
