"""The real `flwr run`: a SuperLink of our own, its simulation, and the same final arrays."""

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fedsim.engine.options import EngineOptions
from fedsim.flower.flower_processes import HOST, environment, free_port, start, stop, wait_for_superlink
from fedsim.flower.foreign.app import run_app

pytestmark = pytest.mark.slow

APPS = Path(__file__).parent / "apps"
EVERYONE = {
    "message_api": "num-server-rounds=2 fraction-train=1.0 nodes=8",
    "push_pull": "rounds=2 cohort=8 noise=1",
    "client_fn": "num-server-rounds=2",
}


@pytest.fixture(scope="module")
def superlink(tmp_path_factory):
    work = tmp_path_factory.mktemp("superlink")
    port, log, variables = free_port(), work / "superlink.log", environment(work, [])
    settings = (
        f'[superlink]\ndefault = "own"\n\n[superlink.own]\naddress = "{HOST}:{port}"\ninsecure = true\n'
    )
    (work / "config.toml").write_text(settings)
    command = ["flower-superlink", "--insecure", "--host", HOST, "--port", str(port), "--simulation"]
    process = start([*command, "--disable-runtime-dependency-installation"], variables, log)
    try:
        wait_for_superlink(process, port, log)
        yield variables
    finally:
        stop([process])


def under_flwr_run(app, folder, config, variables):
    copy = shutil.copytree(APPS / app, folder / "app")  # `flwr run` rewrites older pyproject files
    federation = "num-supernodes=8 client-resources-num-cpus=1 init-args-num-cpus=2"
    flwr = str(Path(sys.executable).parent / "flwr")
    command = [flwr, "run", str(copy), "own", "--stream", "--federation-config", federation]
    command += ["--run-config", f'output="{folder}" {config}']
    subprocess.run(command, env=variables, check=True, timeout=400, stdin=subprocess.DEVNULL)
    with np.load(folder / "final.npz") as arrays:
        return dict(arrays)


@pytest.mark.parametrize("app", EVERYONE)
def test_final_arrays_are_those_of_flwr_run(app, tmp_path, superlink):
    expected = under_flwr_run(app, tmp_path, EVERYONE[app], superlink)
    (tmp_path / "final.npz").unlink()
    overrides = [f'output="{tmp_path}" {EVERYONE[app]}']
    result = run_app(APPS / app, clients=8, engine=EngineOptions(workers=2), overrides=overrides)
    assert result.status == "completed"
    with np.load(tmp_path / "final.npz") as found:
        assert set(found) == set(expected)
        for name, value in expected.items():
            np.testing.assert_array_equal(found[name], value)
