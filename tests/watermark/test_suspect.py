"""Black boxes: files, callables and an HTTP endpoint, and what is no matrix of probabilities."""

import json
import threading
import urllib.request
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
import torch

from fedsim.errors import ConfigError
from fedsim.run.atomic_files import save_tensors
from fedsim.training.functional import model_tensors
from fedsim.watermark.answer_server import answer, server
from fedsim.watermark.stored_model import file_suspect, header, tensors_suspect
from fedsim.watermark.suspect import (
    Suspect,
    callable_suspect,
    checked,
    http_suspect,
    is_address,
    is_callable,
)
from fedsim.watermark.verification import verify


@contextmanager
def running(server):
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def answering(status, body):
    """A server that says the same to everybody."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args):
            pass

    return HTTPServer(("127.0.0.1", 0), Handler)


@pytest.fixture
def honest(world):
    return tensors_suspect("model", world.model, model_tensors(world.model))


def test_http_gives_the_verdict_of_the_file(world, honest, tmp_path):
    key = world.key_of(world.graph)
    path = tmp_path / "model.safetensors"
    save_tensors(path, model_tensors(world.model), header(world.table, 120, 4))
    local = verify(key, world.graph, file_suspect(path, 120, 4), null_sets=12, tuples=50)
    with running(server(honest.query)) as address:
        remote = verify(key, world.graph, http_suspect(address), null_sets=12, tuples=50)
    assert remote.match == local.match
    assert torch.equal(remote.index.null, local.index.null)


def test_the_server_answers_as_described_and_refuses_nonsense(honest):
    with running(server(honest.query)) as address:
        body = json.dumps({"x": [[0.0] * 120] * 3, "edge_index": [[0, 1], [1, 0]]}).encode()
        with urllib.request.urlopen(urllib.request.Request(address, data=body), timeout=10) as reply:
            rows = json.loads(reply.read())["probabilities"]
    assert [len(row) for row in rows] == [4, 4, 4]
    assert [sum(row) for row in rows] == pytest.approx([1, 1, 1])
    for nonsense in (b"", b"[]", b'{"x": [[1]]}', b'{"x": [[1]], "edge_index": [[0], [0]]}', b'{"x": 3}'):
        status, content = answer(honest.query, nonsense)
        assert status == 400
        assert "error" in content


@pytest.mark.parametrize(
    ("status", "body", "message"),
    [
        (500, b"{}", "HTTP status 500"),
        (404, b"{}", "HTTP status 404"),
        (200, b"<html>", "not JSON"),
        (200, b"\xff\xfe", "not JSON"),
        (200, b"[1]", "without a field 'probabilities'"),
        (200, b'{"probabilities": "many"}', "not a matrix of numbers"),
        (200, b'{"probabilities": [[1, 0], [1]]}', "not a matrix of numbers"),
        (200, b'{"probabilities": null}', "not a matrix of numbers"),
        (200, b'{"probabilities": [[0.5, 0.5]]}', r"shape \[1, 2\], wanted \[12, 4\]"),
    ],
)
def test_endpoints_that_answer_nonsense(world, status, body, message):
    with running(answering(status, body)) as address, pytest.raises(ConfigError, match=message) as caught:
        verify(world.key_of(world.graph), world.graph, http_suspect(address))
    assert address in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_address_where_nobody_answers(world):
    closed = HTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler)
    port = closed.server_address[1]
    closed.server_close()
    with pytest.raises(ConfigError, match="cannot be asked"):
        verify(world.key_of(world.graph), world.graph, http_suspect(f"http://127.0.0.1:{port}/"))


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (torch.full((3, 2), 0.5), "2 classes, but the key is for 4"),
        (torch.full((2, 4), 0.25), r"shape \[2, 4\], wanted \[3, 4\]"),
        (torch.tensor([0, 1, 2]), "one number per node"),
        (torch.full((3, 4), float("nan")), "not finite"),
        (torch.full((3, 4), 0.6), "not probabilities"),
        (torch.tensor([[-0.1, 0.4, 0.4, 0.3]] * 3), "not probabilities"),
        (torch.tensor([[1.1, 0.0, 0.0, 0.0]] * 3), "not probabilities"),
        (torch.zeros(3, 4, 1), r"shape \[3, 4, 1\]"),
        ("text", "not a matrix of numbers"),
    ],
)
def test_answers_that_are_no_probabilities(rows, message):
    with pytest.raises(ConfigError, match=message):
        checked(rows, 3, 4, "suspect")


def test_lists_and_rounded_answers_are_taken():
    assert checked([[0.3, 0.3, 0.3, 0.0]] * 3, 3, 4, "suspect").dtype == torch.float64
    many = torch.full((3, 15), 1 / 15, dtype=torch.float64)  # 0.067, which rounds to 0.1
    assert float(checked(many.round(decimals=1), 3, 15, "suspect").sum()) == pytest.approx(4.5)


def test_hard_labels_are_told(world, honest):
    def labels(x, edges):
        return torch.eye(4)[honest.query(x, edges).argmax(dim=1)]

    with pytest.raises(ConfigError, match="hard labels"):
        verify(world.key_of(world.graph), world.graph, Suspect("labels", labels))


def test_callables_are_found_and_their_faults_attributed(world, tmp_path, monkeypatch):
    (tmp_path / "blackbox.py").write_text(
        "import torch\n"
        "value = 3\n"
        "def uniform(x, edge_index):\n    return torch.full((len(x), 4), 0.25)\n"
        "def broken(x, edge_index):\n    raise KeyError('x')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    key = world.key_of(world.graph)
    verdict = verify(key, world.graph, callable_suspect("blackbox:uniform"), null_sets=0)
    assert (verdict.match.matches, verdict.match.p) == (0, 1.0)
    with pytest.raises(ConfigError, match=r"blackbox:broken raised KeyError.*blackbox.py, line 6"):
        verify(key, world.graph, callable_suspect("blackbox:broken"))
    for target, message in [
        ("blackbox:missing", "cannot be imported"),
        ("nothing.like.it:f", "cannot be imported"),
        ("blackbox:value", "is not callable"),
    ]:
        with pytest.raises(ConfigError, match=message):
            callable_suspect(target)


def test_kinds_of_suspects_are_told_by_their_names():
    assert is_address("https://x/")
    assert is_callable("package.module:function")
    assert not is_callable("model.safetensors")
    assert not is_callable("C:\\model.safetensors")


@pytest.mark.parametrize(
    ("table", "features", "classes", "message"),
    [
        ({"hidden": 16}, 120, 4, "should have shape"),
        ({}, 60, 4, "is a model for 60 features, but the key is for 120"),
        ({}, 120, 7, "is a model for 7 classes, but the key is for 4"),
    ],
)
def test_stored_models_for_other_data(world, tmp_path, table, features, classes, message):
    path = tmp_path / "model.safetensors"
    save_tensors(path, model_tensors(world.model), header(world.table | table, features, classes))
    with pytest.raises(ConfigError, match=message):
        file_suspect(path, 120, 4)


def test_stored_models_without_a_header(world, tmp_path):
    path = tmp_path / "model.safetensors"
    save_tensors(path, model_tensors(world.model))
    with pytest.raises(ConfigError, match=r"add --set model.kind"):
        file_suspect(path, 120, 4)
    file_suspect(path, 120, 4, world.table)
    (tmp_path / "manifest.json").write_text(json.dumps({"config": {"model": world.table}}))
    file_suspect(path, 120, 4)
    path.write_bytes(b"junk")
    with pytest.raises(ConfigError, match="is not a safetensors file"):
        file_suspect(path, 120, 4)
    with pytest.raises(ConfigError, match="no such file"):
        file_suspect(tmp_path / "none.safetensors", 120, 4)


def test_too_few_nodes_for_the_null_are_told(world, honest):
    key = world.key_of(world.graph, size=40)
    with pytest.raises(ConfigError, match=r"at least 10 other sets of 40 .* for 5: .*--null-sets 0"):
        verify(key, world.graph, honest)
    assert verify(key, world.graph, honest, null_sets=0).index is None
