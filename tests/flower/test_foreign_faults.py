"""FIELD faults 1 to 9 with apps that know nothing of fedsim."""

import json
from pathlib import Path

import numpy as np
import pytest

import fedsim.flower.session as session
from fedsim.engine.options import EngineOptions
from fedsim.errors import ConfigError
from fedsim.flower.foreign.app import run_app
from fedsim.flower.foreign.result import summary_lines

APPS = Path(__file__).parent / "apps"


def play(app, output, config="", *, workers=1, apart=False, clients=None, allowed=0.0):
    return run_app(
        APPS / app,
        clients=clients,
        engine=EngineOptions(workers=workers),
        overrides=[f'output="{output}" {config}'],
        apart=apart,
        max_failed_fraction=allowed,
    )


class Recorder:
    """An engine that also keeps what it was given."""

    def __init__(self, engine):
        self.engine, self.workers, self.calls = engine, engine.workers, []

    def run(self, broadcast, tasks, round):
        self.calls.append(tasks)
        return self.engine.run(broadcast, tasks, round)

    def take_incidents(self):
        return self.engine.take_incidents()

    def take_packing(self):
        return self.engine.take_packing()

    def close(self):
        self.engine.close()


@pytest.fixture
def recorded(monkeypatch):
    recorders, start = [], session.start

    def recording(*arguments):
        recorders.append(Recorder(start(*arguments)))
        return recorders[-1]

    monkeypatch.setattr(session, "start", recording)
    return recorders


def partitions(call):
    return [item for task in call for item in task.items]


def test_1_every_round_has_the_declared_cohort_also_the_first(tmp_path, recorded):
    play("message_api", tmp_path, "fraction-train=0.1 num-server-rounds=3", clients=50)
    train = [c for c in recorded[0].calls if c[0].payloads[0].metadata.message_type == "train"]
    assert [len(call) for call in train] == [5, 5, 5]
    play("client_fn", tmp_path, "fraction-fit=0.1 num-server-rounds=3", clients=50)
    fit = [c for c in recorded[1].calls if c[0].payloads[0].metadata.message_type == "train"]
    assert [len(call) for call in fit] == [5, 5, 5]


def test_2_cohorts_depend_on_the_seed_alone(tmp_path, recorded):
    for _ in range(2):
        play("client_fn", tmp_path, "fraction-fit=0.3", clients=20)
    first, second = ([partitions(call) for call in recorder.calls] for recorder in recorded)
    assert first == second
    assert all(call == sorted(call) for call in first)


@pytest.mark.parametrize("app", ["message_api", "client_fn"])
@pytest.mark.parametrize("allowed", [0.0, 1.0])
def test_3_a_run_whose_clients_all_raise_has_failed(app, allowed, tmp_path):
    result = play(app, tmp_path, "fail='all'", allowed=allowed)
    assert (result.status, result.exit_code) == ("failed", 1)
    assert "messages failed" in result.error
    assert {failure.kind for failure in result.failures} == {"exception"}
    assert "told to fail" in "\n".join(summary_lines(result))


@pytest.mark.parametrize("app", ["message_api", "client_fn"])
def test_4_one_nan_is_refused_and_the_others_count(app, tmp_path):
    result = play(
        app, tmp_path, "fail='nan:1' fraction-train=1.0" if app == "message_api" else "fail='nan:1'"
    )
    assert all(np.isfinite(array).all() for array in result.arrays.values())
    assert {(f.kind, f.partition) for f in result.failures} == {("refused", 1)}
    assert result.exit_code == 1
    tolerant = play(app, tmp_path, "fail='nan:1'", allowed=0.5)
    assert tolerant.exit_code == 0
    assert len(tolerant.failures) > 0


@pytest.mark.parametrize(("app", "word"), [("message_api", "allempty"), ("client_fn", "empty")])
def test_5_no_examples_anywhere_is_a_failed_run_and_no_crash(app, word, tmp_path):
    result = play(app, tmp_path, f"fail='{word}'", allowed=1.0)
    assert result.exit_code == 1
    assert "ZeroDivisionError" not in result.error + result.traceback
    assert {failure.kind for failure in result.failures} == {"refused"}


@pytest.mark.parametrize(("app", "workers"), [("message_api", 1), ("client_fn", 2)])
def test_7_a_client_that_kills_its_process_is_named_and_the_others_finish(app, workers, tmp_path):
    config = "fail='die:2' num-server-rounds=1"
    config += " fraction-train=1.0" if app == "message_api" else ""
    result = play(app, tmp_path, config, workers=workers, apart=True)
    assert result.exit_code == 1
    assert {(f.kind, f.partition) for f in result.failures} == {("died", 2)}
    assert result.arrays is not None
    assert "Client 2" in result.failures[0].message


def test_8_all_clients_of_a_round_go_out_in_one_call(tmp_path, recorded):
    play("client_fn", tmp_path, "num-server-rounds=1", clients=60)
    assert [len(call) for call in recorded[0].calls] == [60, 60]
    play("message_api", tmp_path, "num-server-rounds=1 fraction-train=1.0", clients=60)
    assert [len(call) for call in recorded[1].calls] == [60] * 5


@pytest.mark.parametrize("app", ["message_api", "client_fn"])
def test_9_nobody_has_a_time_limit_that_nobody_asked_for(app, tmp_path, recorded):
    play(app, tmp_path, "num-server-rounds=1")
    payloads = [task.payloads[0] for call in recorded[0].calls for task in call]
    assert {payload.expires for payload in payloads} == {float("inf")}


def test_a_fault_of_one_client_does_not_move_the_others_draws(tmp_path):
    def draws(config):
        play("client_fn", tmp_path, f"num-server-rounds=2 {config}")
        log = json.loads((tmp_path / "log.json").read_text())
        return {(e["round"], r["partition"]): r["draw"] for e in log for r in e["replies"]}

    whole, broken = draws(""), draws("fail='raise:1'")
    assert broken.items() <= whole.items()
    assert {partition for _, partition in whole.keys() - broken.keys()} == {1}


def test_waiting_for_more_clients_than_there_are_ends_with_a_clear_line(tmp_path):
    result = play("client_fn", tmp_path, "min-available=9")
    assert result.exit_code == 1
    assert "waits for 9 clients, but the run has 5" in result.error
    one = play("message_api", tmp_path, clients=1)
    assert "waits for more nodes than the run's 1" in one.error


PROJECT = """
[project]
name = "quiet"
version = "1.0"
[tool.flwr.app]
publisher = "tests"
[tool.flwr.app.components]
serverapp = "quiet:server"
clientapp = "quiet:client"
[tool.flwr.app.config]
output = ""
"""
QUIET = """
import os
from flwr.serverapp import ServerApp
from flwr.clientapp import ClientApp
server, client = ServerApp(), ClientApp()

@server.main()
def main(grid, context):
    {body}
"""


def written(folder, body, start=""):
    (folder / "pyproject.toml").write_text(PROJECT)
    (folder / "quiet.py").write_text(start + QUIET.format(body=body))
    return run_app(folder, clients=2, engine=EngineOptions(workers=1), apart=False)


def test_a_server_that_sends_nothing_is_said_to_have_sent_nothing(tmp_path):
    result = written(tmp_path, "pass")
    assert (result.status, result.exit_code, result.messages) == ("no messages", 0, 0)
    lines = summary_lines(result)
    assert "no messages in" in lines[0]
    assert "note: The ServerApp sent no message to any client: nothing was federated." in lines


def test_a_server_that_ends_the_process_has_failed(tmp_path):
    result = written(tmp_path, "os._exit(0)")
    assert (result.status, result.exit_code) == ("failed", 1)
    assert "os._exit(0)" in result.error


def test_a_module_that_ends_the_process_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"cannot be imported: SystemExit: os._exit\(0\)"):
        written(tmp_path, "pass", "import os; os._exit(0)\n")


def test_a_client_whose_process_ended_leaves_events(tmp_path):
    result = play(
        "message_api", tmp_path, 'fail="die:2" num-server-rounds=1', workers=2, clients=4, allowed=1.0
    )
    first = result.incidents[0]
    assert (first.kind, first.items, first.remedy) == ("died", (2,), "retried")
    assert any(line.startswith("event: round ") for line in summary_lines(result))
