"""`fedsim watermark` from files to verdicts, and its one-line refusals."""

import json
import os
import stat
import subprocess
import sys
import threading

import pytest
import torch
from typer.testing import CliRunner

from fedsim.cli import app
from fedsim.run.atomic_files import save_tensors
from fedsim.watermark.answer_server import server
from fedsim.watermark.stored_model import file_suspect

SMALL = ["--set", "model.hidden=32", "--set", "model.layers=2", "--set", "embedding.epochs=100"]
FAST = ["--set", "embedding.optimizer.kind=adam", "--set", "embedding.optimizer.learning_rate=0.01"]


def fedsim(*words):
    return CliRunner().invoke(app, ["watermark", *map(str, words)])


@pytest.fixture(scope="module")
def folder(world, tmp_path_factory):
    """Data, a key, a marked model and its control, made by the commands."""
    path = tmp_path_factory.mktemp("watermark")
    graph = {"x": world.graph.x, "edge_index": world.graph.edge_index, "y": world.graph.y}
    save_tensors(path / "data.safetensors", graph)
    data = ["--data", path / "data.safetensors"]
    made = fedsim("keygen", *data, "--owner", "Ada", "--size", 12, "--marks", 60, "--out", path / "key.json")
    assert made.exit_code == 0, made.output
    for name, extra in (("marked", []), ("control", ["--unmarked"])):
        done = fedsim(
            "embed", path / "key.json", *data, *SMALL, *FAST, *extra, "--out", path / f"{name}.safetensors"
        )
        assert done.exit_code == 0, done.output
    return path


def verify(folder, suspect, *words, key="key.json", data="data.safetensors"):
    return fedsim("verify", folder / key, suspect, "--data", folder / data, *words)


def test_verdicts_on_files(folder):
    guilty = verify(folder, folder / "marked.safetensors", "--null-sets", 20)
    assert guilty.exit_code == 0
    assert "MARKED: the suspect carries the mark" in guilty.output
    assert "alpha 0.01 / 1000000 keys: p must be at most 1e-08" in guilty.output
    innocent = verify(folder, folder / "control.safetensors", "--null-sets", 0)
    assert innocent.exit_code == 0
    assert "NOT PROVEN" in innocent.output


def test_json_picture_and_commitment(folder, tmp_path):
    picture = tmp_path / "null.png"
    done = verify(
        folder, folder / "marked.safetensors", "--json", "--picture", picture,
        "--commitment", folder / "key.commitment.json", "--null-sets", 15,
    )  # fmt: skip
    told = json.loads(done.output)
    assert told["marked"] is True
    assert told["p"] <= told["threshold"] == pytest.approx(1e-8)
    assert told["commitment"] == json.loads((folder / "key.commitment.json").read_text())["sha256"]
    assert {"index", "null_mean", "null_deviation", "z", "p", "rank_p"} <= set(told["matching_index"])
    assert picture.read_bytes().startswith(b"\x89PNG")
    alone = verify(folder, folder / "marked.safetensors", "--null-sets", 0, "--picture", picture)
    assert alone.exit_code == 0


def test_the_loopback_endpoint_of_a_marked_and_an_unmarked_model(folder):
    for name, expected in (("marked", True), ("control", False)):
        suspect = file_suspect(folder / f"{name}.safetensors", 120, 4)
        with server(suspect.query) as answering:
            thread = threading.Thread(target=answering.serve_forever, kwargs={"poll_interval": 0.02})
            thread.start()
            address = f"http://127.0.0.1:{answering.server_address[1]}/"
            done = verify(folder, address, "--json", "--null-sets", 15)
            answering.shutdown()
            thread.join()
        assert json.loads(done.output)["marked"] is expected


def test_a_key_file_is_its_owner_s_alone_and_never_written_over(folder):
    assert stat.S_IMODE((folder / "key.json").stat().st_mode) == 0o600
    secret = json.loads((folder / "key.json").read_text())["secret"]
    assert secret not in (folder / "key.commitment.json").read_text()
    again = fedsim(
        "keygen", "--data", folder / "data.safetensors", "--owner", "Ada", "--out", folder / "key.json"
    )
    assert again.exit_code == 2
    assert "a key that is written over is lost" in again.stderr


def test_two_keys_have_two_secrets(folder, tmp_path):
    secrets = set()
    for name in ("a", "b"):
        fedsim(
            "keygen",
            "--data",
            folder / "data.safetensors",
            "--owner",
            "Ada",
            "--out",
            tmp_path / f"{name}.json",
        )
        secrets.add(json.loads((tmp_path / f"{name}.json").read_text())["secret"])
    assert len(secrets) == 2


def test_few_marks_are_told(folder, tmp_path):
    made = fedsim(
        "keygen", "--data", folder / "data.safetensors", "--owner", "Ada", "--marks", 8, "--out",
        tmp_path / "key.json",
    )  # fmt: skip
    assert "So few marks prove little: no model can reach p below 0.014 (asked: 1e-08)" in made.output


def test_embed_as_json(folder, tmp_path):
    done = fedsim(
        "embed", folder / "key.json", "--data", folder / "data.safetensors", *SMALL, "--set",
        "embedding.epochs=2", "--json", "--out", tmp_path / "m.safetensors",
    )  # fmt: skip
    told = json.loads(done.output)
    assert set(told["accuracy"]) == {"train", "val", "test"}
    assert told["keys"][0]["owner"] == "Ada"


@pytest.fixture(scope="module")
def strange(world, folder):
    """Files that do not fit."""
    x, edges, y = world.graph.x, world.graph.edge_index, world.graph.y
    save_tensors(folder / "narrow.safetensors", {"x": x[:, :50].clone(), "edge_index": edges, "y": y})
    save_tensors(folder / "short.safetensors", {"x": x[:9], "edge_index": edges[:, :0], "y": y[:9]})
    save_tensors(folder / "bad_edges.safetensors", {"x": x, "edge_index": edges + 600, "y": y})
    save_tensors(folder / "no_y.safetensors", {"x": x, "edge_index": edges})
    save_tensors(folder / "more_classes.safetensors", {"x": x, "edge_index": edges, "y": (y + 1) % 5 + 0})
    (folder / "junk.json").write_text("{}")
    (folder / "answers.py").write_text(
        "import torch\n"
        "def seven(x, edges):\n    return torch.full((len(x), 7), 1 / 7)\n"
        "def labels(x, edges):\n    return torch.eye(4)[torch.arange(len(x)) % 4]\n"
    )
    sys.path.append(str(folder))
    yield folder
    sys.path.remove(str(folder))


@pytest.mark.parametrize(
    ("suspect", "options", "message"),
    [
        ("marked.safetensors", {"data": "narrow.safetensors"}, "is for 120 features, but the data have 50"),
        ("answers:seven", {}, "answers for 7 classes, but the key is for 4"),
        ("answers:labels", {}, "hard labels"),
        ("marked.safetensors", {"data": "short.safetensors"}, "the data have 9 nodes"),
        ("marked.safetensors", {"data": "none.safetensors"}, "no such file"),
        ("marked.safetensors", {"data": "no_y.safetensors"}, "needs tensors x"),
        ("marked.safetensors", {"data": "bad_edges.safetensors"}, "names nodes that x does not have"),
        ("marked.safetensors", {"key": "junk.json"}, "not a key of this program"),
        ("marked.safetensors", {"key": "none.json"}, "cannot be read"),
        ("none.safetensors", {}, "no such file"),
        ("key.json", {}, "is not a safetensors file"),
        ("answers:nothing", {}, "cannot be imported"),
    ],
)  # fmt: skip
def test_bad_input_is_one_line_and_exit_code_two(strange, suspect, options, message):
    place = suspect if ":" in suspect else strange / suspect
    done = verify(strange, place, **options)
    assert done.exit_code == 2, done.output
    assert message in done.stderr
    assert done.stderr.startswith("fedsim: ")
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--alpha", 0], "alpha must be above 0 and below 1"),
        (["--budget", 0], "budget must be at least 1"),
        (["--null-sets", -1], "--null-sets must be at least 0"),
        (["--set", "modell.kind=gcn"], "unknown table 'modell'; did you mean 'model'?"),
        (["--commitment", "none"], "cannot be read"),
        (["--alpha", "nan"], "alpha must be above 0 and below 1, found nan"),
        (["--picture", "no/such/folder/null.png"], "no/such/folder does not exist"),
        (["--picture", "."], "is a folder, wanted a file"),
    ],
)
def test_bad_options_of_verify(folder, words, message):
    done = verify(folder, folder / "marked.safetensors", *words)
    assert done.exit_code == 2
    assert message in done.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--sets", 1], "--sets must be at least 2, found 1"),
        (["--size", 200], "4 sets of 200 nodes need 800 nodes, found 360"),
        (["--date", "soon"], "date must be like 2026-01-31"),
        (["--owner", " "], "owner must be a name"),
        (["--marks", 500], "marks must be between 2 and"),
        (["--data", "TUDataset/NONE"], "NONE"),
        (["--sets", 10**20], "--sets must be at most 1000000"),
        (["--size", -1], "--size must be at least 2"),
        (["--size", 0], "--size must be at least 2"),
        (["--share", 0], "--share must be above 0 and below 1, found 0.0"),
        (["--share", "nan"], "--share must be above 0 and below 1, found nan"),
        (["--seed", -1], "--seed must be at least 0"),
        (["--date", ""], "date must be like 2026-01-31, found ''"),
        (["--owner", "Ada\nEve"], "owner must be a name on one line"),
        (["--out", "no/such/folder/key.json"], "no/such/folder does not exist"),
        (["--out", "."], "is a folder, wanted a file"),
    ],
)
def test_bad_options_of_keygen(folder, tmp_path, words, message):
    done = fedsim(
        "keygen",
        "--data",
        folder / "data.safetensors",
        "--owner",
        "Ada",
        "--out",
        tmp_path / "k.json",
        *words,
    )
    assert done.exit_code == 2
    assert message in done.stderr
    assert not list(tmp_path.iterdir())


def test_bad_options_of_embed(folder, tmp_path):
    base = ["embed", folder / "key.json", "--data", folder / "data.safetensors", "--out", tmp_path / "m"]
    for words, message in [
        (["--set", "embedding.epochs=0"], "embedding.epochs must be at least 1"),
        (["--set", "embedding.epoch=1"], "did you mean 'epochs'"),
        (["--set", "model.kind=none"], "no models plugin is called 'none'"),
        (["--set", "embedding=3"], "wanted keys of the table"),
        (["--set", "embedding.strength=nan"], "strength must be above 0 and finite, found nan"),
        (["--set", "model.hidden=99999999999999999999"], "model: cannot be built with"),
        (["--seed", "-1"], "--seed must be at least 0"),
        (["--out", "no/such/folder/m"], "no/such/folder does not exist"),
        ([folder / "key.json"], "The same key is given twice"),
        (["--set", "embedding.strength=1e300", "--set", "embedding.epochs=3"], "Training diverged"),
    ]:
        done = fedsim(*base, *words)
        assert done.exit_code == 2, done.output
        assert message in done.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--sets", -1], "--sets must be at least 2, found -1"),
        (["--size", 0], "--size must be at least 2"),
        (["--models", 0], "--models must be at least 1"),
        (["--models", 10**20], "--models must be at most 1000000"),
        (["--keys", -5], "--keys must be at least 1"),
        (["--secrets", 0], "--secrets must be at least 1"),
        (["--candidates", 0], "--candidates must be at least 2"),
        (["--swaps", -1], "--swaps must be at least 0"),
        (["--seed", -1], "--seed must be at least 0"),
    ],
)
def test_bad_options_of_audit(folder, words, message):
    done = fedsim("audit", "--data", folder / "data.safetensors", *SMALL, *words)
    assert done.exit_code == 2, done.output
    assert message in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--port", 70000], "--port must be at most 65535, found 70000"),
        (["--host", "no such host"], "cannot listen there"),
    ],
)
def test_bad_options_of_serve(folder, words, message):
    done = fedsim("serve", folder / "marked.safetensors", *words)
    assert done.exit_code == 2, done.output
    assert message in done.stderr


def test_serve_in_a_process_of_its_own(folder):
    words = ["-m", "fedsim", "watermark", "serve", str(folder / "marked.safetensors"), "--port", "0"]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        [sys.executable, *words], stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        try:
            address = process.stdout.readline().split()[0]
            done = verify(folder, address, "--json", "--null-sets", 0)
            assert json.loads(done.output)["marked"] is True
        finally:
            process.terminate()
    assert process.returncode in (130, -15)


def test_data_without_edges_is_a_graph_too(folder, tmp_path):
    x = (torch.rand(200, 40, generator=torch.Generator().manual_seed(0)) < 0.4).float()
    nothing = torch.zeros(2, 0, dtype=torch.int64)
    save_tensors(tmp_path / "d.safetensors", {"x": x, "edge_index": nothing, "y": torch.arange(200) % 2})
    made = fedsim(
        "keygen",
        "--data",
        tmp_path / "d.safetensors",
        "--owner",
        "Ada",
        "--size",
        5,
        "--out",
        tmp_path / "k.json",
    )
    assert made.exit_code == 0, made.output


def test_an_audit_of_all_parts(folder):
    words = [
        "audit", "--data", folder / "data.safetensors", *SMALL, "--set", "embedding.epochs=20", "--models", 2,
        "--keys", 5, "--size", 10, "--secrets", 50, "--candidates", 40, "--swaps", 10,
    ]  # fmt: skip
    done = fedsim(*words)
    assert done.exit_code == 0, done.output
    for words_of_part in ("false claims: 10 of fresh sets", "fewer than 20 models", "node swap", "cured"):
        assert words_of_part in done.output
    told = json.loads(fedsim(*words, "--part", "forgery", "--json").output)
    assert [one["key_accepts"] for one in told["forgery"]] == [False] * 5
    refused = fedsim(*words, "--part", "claim")
    assert refused.exit_code == 2
    assert "did you mean 'claims'?" in refused.stderr
