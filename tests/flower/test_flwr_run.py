"""The wrapper around `flwr run`, without running Flower; see test_flwr_run_end_to_end for the rest."""

import os
import shlex
import subprocess
import sys
import time
import tomllib
import zipfile
from io import BytesIO
from pathlib import Path

import pytest
from flwr.cli.build import build_fab_from_disk
from flwr.cli.run.run import _parse_federation_config_overrides
from flwr.cli.typing import SuperLinkConnection

from fedsim.config import parse
from fedsim.errors import ConfigError, WorkerError
from fedsim.flower import bundle, flower_processes
from fedsim.flower.flwr_run import Outcome, _simulation, main, outcome_of

HASH = "ab" * 32
quiet = pytest.mark.filterwarnings("ignore:GitWildMatchPattern:DeprecationWarning")  # Flower's own


@pytest.fixture
def experiment(tmp_path):
    folder = tmp_path / "mine"
    folder.mkdir()
    path = folder / "experiment.toml"
    path.write_text("rounds = 2\n")
    (folder / "secret.csv").write_text("data")
    return path


def staged(experiment, tmp_path, *overrides):
    bundle.stage(experiment, overrides, tmp_path / "out", tmp_path / "app")
    return tmp_path / "app"


@quiet
def test_the_bundle_holds_the_packages_and_the_experiment_and_is_small(experiment, tmp_path):
    fab = build_fab_from_disk(staged(experiment, tmp_path))
    names = zipfile.ZipFile(BytesIO(fab)).namelist()
    assert len(fab) < 4 * 2**20  # Flower refuses 10 MB
    for name in (
        "pyproject.toml",
        "fedsim/flower/server_app.py",
        "strategies/fedavg.py",
        "clients/supervised.py",
    ):
        assert name in names
    assert "experiments/mine/experiment.toml" in names
    assert not [name for name in names if "test" in name or name.endswith((".csv", ".pyc"))]


@quiet
def test_the_repository_itself_is_a_small_flower_app():
    fab = build_fab_from_disk(bundle.source_folder())
    names = zipfile.ZipFile(BytesIO(fab)).namelist()
    assert len(fab) < 5 * 2**20
    assert not [name for name in names if name.startswith((".venv/", "runs/"))]


def test_the_run_configuration_survives_quotes(experiment, tmp_path):
    overrides = ("seeds=[1, 2]", 'data={kind = "digits"}', "strategy.kind='fedavg'")
    app = staged(experiment, tmp_path, *overrides)
    config = tomllib.loads((app / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    assert tuple(shlex.split(config["overrides"])) == overrides
    assert config["experiment"] == "experiments/mine/experiment.toml"
    assert config["output"] == str(tmp_path / "out")


def test_fedsim_without_its_repository_is_refused(monkeypatch, tmp_path):
    package = tmp_path / "fedsim"
    package.mkdir()
    (package / "__init__.py").touch()
    monkeypatch.setattr(bundle.fedsim, "__file__", str(package / "__init__.py"))
    with pytest.raises(ConfigError, match=r"which has no pyproject.toml: a Flower app is its repository"):
        bundle.source_folder()


def test_the_simulation_has_a_node_per_client_and_one_cpu_each():
    experiment = parse({"rounds": 1, "federation": {"clients": 7}, "engine": {"device": "cpu"}})
    option, text = _simulation(experiment)
    assert option == "--federation-config"
    connection = SuperLinkConnection("x", address="127.0.0.1:1", insecure=True)
    config = _parse_federation_config_overrides([text], connection)
    assert (config.num_supernodes, config.client_resources_num_cpus) == (7, 1)
    assert config.init_args_num_cpus >= 1


@pytest.mark.parametrize(
    ("status", "lines", "code"),
    [
        ("finished:completed", f"model_sha256 {HASH}\nfedsim_exit_code 0", 0),
        ("finished:completed", "fedsim_exit_code 0", 1),  # no model
        ("finished:completed", "", 1),  # the ServerApp never came to its end
        ("finished:failed", f"model_sha256 {HASH}\nfedsim_exit_code 0", 1),
        ("finished:failed", f"model_sha256 {HASH}\nfedsim_exit_code 3", 3),
        ("finished:failed", "fedsim_exit_code 2", 2),
        ("unknown: ", f"model_sha256 {HASH}\nfedsim_exit_code 0", 1),
    ],
)
def test_only_agreement_is_success(status, lines, code):
    assert outcome_of(status, lines).code == code


def test_the_reason_of_a_failure_is_kept():
    log = "seed 0: failed Round 1: 3 of 3 clients failed\nfedsim_exit_code 1\nTraceback"
    assert outcome_of("finished:failed", log).reason == "Round 1: 3 of 3 clients failed"
    assert outcome_of("finished:failed", "Error: no such data\n").reason == "no such data"
    assert Outcome("finished:failed", None, ()).reason == ""


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["rounds=zero"], 'rounds: found "zero", wanted an integer'),
        (["data.kind=digitz"], "did you mean 'digits'?"),
        (["federation.clients_per_round=99"], "clients_per_round"),
    ],
)
def test_bad_input_is_one_line_and_code_2(experiment, capsys, overrides, message):
    assert main([str(experiment), *(f"--set={text}" for text in overrides)]) == 2
    captured = capsys.readouterr()
    assert captured.err.count("\n") == 1
    assert message in captured.err


def test_a_missing_file_is_code_2(tmp_path, capsys):
    assert main([str(tmp_path / "none.toml")]) == 2
    assert "no such file" in capsys.readouterr().err


def test_flowers_processes_are_their_own(monkeypatch, tmp_path):
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    variables = flower_processes.environment(tmp_path / "home", [tmp_path])
    assert variables["FLWR_HOME"] == str(tmp_path / "home")
    assert variables["PYTHONPATH"] == os.pathsep.join([str(tmp_path), "/elsewhere"])
    assert variables["PATH"].split(os.pathsep)[0] == str(Path(sys.executable).parent)
    assert variables["FLWR_TELEMETRY_ENABLED"] == "0"


PARENT = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True)
print(child.pid, flush=True)
time.sleep(60)
"""


def test_stop_ends_descendants_and_nobody_else(tmp_path, monkeypatch):
    monkeypatch.setattr(flower_processes, "GRACE", 0.5)
    bystander = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        root = flower_processes.start(["python", "-c", PARENT], dict(os.environ), tmp_path / "log")
        end = time.monotonic() + 20
        while not (text := (tmp_path / "log").read_text()).strip() and time.monotonic() < end:
            time.sleep(0.05)
        child = int(text)
        assert flower_processes._alive(child)
        flower_processes.stop([root])
        assert root.poll() is not None
        assert not flower_processes._alive(child)
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


def test_a_superlink_that_ends_is_reported_with_its_log(tmp_path):
    root = flower_processes.start(
        ["python", "-c", "print('port taken'); raise SystemExit(3)"], os.environ, tmp_path / "log"
    )
    with pytest.raises(WorkerError, match="ended with code 3:\nport taken"):
        flower_processes.wait_for_superlink(root, flower_processes.free_port(), tmp_path / "log")


def test_free_ports_differ_while_they_are_held():
    assert 1024 < flower_processes.free_port() < 65536
