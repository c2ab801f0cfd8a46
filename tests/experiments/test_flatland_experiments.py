"""The files of `experiments/flatland_*`: every plugin of every cell can be built; pictures are drawn."""

import importlib.util
import json
import warnings
from pathlib import Path

import pytest

from fedsim.config import load
from fedsim.run.assembly import build_plugins
from fedsim.sweep.cells import cells_of
from fedsim.sweep.file import read_sweep

# PyG compiles a class while it is imported, which torch 2.13 deprecates; tests turn warnings into errors.
with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    import torch_geometric.nn  # noqa: F401

FOLDER = Path(__file__).resolve().parents[2] / "experiments"
RUNS = sorted(p for p in FOLDER.glob("flatland_*/*.toml") if p.name != "sweep.toml")
SWEEPS = sorted(FOLDER.glob("flatland_*/sweep.toml"))


@pytest.mark.parametrize("path", RUNS, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_an_experiment_s_plugins_are_built(path):
    experiment = load(path)
    plugins = build_plugins(experiment, experiment.seeds[0])
    assert type(plugins.method).__name__ == "FlatLand"


@pytest.mark.parametrize("path", SWEEPS, ids=lambda path: path.parent.name)
def test_a_sweep_s_methods_are_built(path):
    """One cell of each method: the other axes change numbers and names alone."""
    sweep = read_sweep(path)
    axis = next(axis.name for axis in sweep.axes if axis.name in ("method", "control"))
    methods = {}
    for cell in cells_of(sweep):
        label = cell.choices[axis]
        if label not in methods:
            methods[label] = build_plugins(cell.experiment, 0)
    assert {"local", "fedavg", "ditto", "flatland"} <= methods.keys()
    assert type(methods["flatland"].builder).__name__ == "Lorentz"
    assert type(methods["fedavg"].method).__name__ == "Supervised"


@pytest.fixture
def draw():
    spec = importlib.util.spec_from_file_location("draw", FOLDER / "flatland_controls" / "draw.py")
    assert spec
    assert spec.loader
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


def run_folder(path, accuracy, diagnostics):
    names = ["k_0", "time_norm_0", "space_norm_0", "residual_0"]
    names += [f"graph_{n}" for n in ("delta_mean", "delta_relative", "degree_tail", "forman_ricci")]
    lines = []
    for number in (1, 2, 3):
        told = {f"client_diagnostic_{n}": {"by_client": {"0": 0.5, "1": 1.0 * number}} for n in names}
        clients = {"client_test_accuracy": {"by_client": {"0": accuracy, "1": accuracy / 2}}}
        lines.append(
            {"round": number, "clients": (clients | (told if diagnostics else {})) if number > 1 else {}}
        )
    path.mkdir()
    (path / "rounds.jsonl").write_text("\n".join(map(json.dumps, lines)))
    return path


def test_pictures_are_drawn_and_a_missing_metric_is_told(draw, tmp_path, monkeypatch):
    ours = run_folder(tmp_path / "ours", 0.8, diagnostics=True)
    theirs = run_folder(tmp_path / "theirs", 0.7, diagnostics=False)
    monkeypatch.setattr("sys.argv", ["draw.py", str(ours), str(theirs), "--out", str(tmp_path / "pictures")])
    draw.main()
    assert all((tmp_path / "pictures" / name).stat().st_size > 5000 for name in ("curvature.png", "gain.png"))
    with pytest.raises(SystemExit, match=r"no client_diagnostic_k_0 by client: set client\.diagnostics"):
        draw.draw_curvature(draw.records(theirs), tmp_path / "x.png")
