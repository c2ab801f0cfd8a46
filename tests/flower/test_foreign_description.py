"""A wrong folder, configuration or import is told in one line, with exit code 2."""

from pathlib import Path

import pytest

from fedsim.engine.options import EngineOptions
from fedsim.errors import ConfigError
from fedsim.flower.foreign.app import run_app
from fedsim.flower.foreign.description import describe

APPS = Path(__file__).parent / "apps"
PROJECT = """
[project]
name = "made-up"
version = "1.0"
dependencies = ["flwr>=1.42", "pandas-of-mars>=2"]
[tool.flwr.app]
publisher = "tests"
[tool.flwr.app.components]
serverapp = "server:app"
clientapp = "client:app"
[tool.flwr.app.config]
rate = 0.5
steps = 3
[tool.flwr.app.config.model]
name = "cnn"
[tool.flwr.app.config.model.head]
width = 8
"""
SERVER = (
    "from flwr.serverapp import ServerApp\napp = ServerApp()\n@app.main()\ndef main(grid, context): pass\n"
)
CLIENT = "from flwr.clientapp import ClientApp\napp = ClientApp()\n"


@pytest.fixture
def folder(tmp_path):
    def make(project=PROJECT, server=SERVER, client=CLIENT):
        (tmp_path / "pyproject.toml").write_text(project)
        (tmp_path / "server.py").write_text(server)
        (tmp_path / "client.py").write_text(client)
        return tmp_path

    return make


def test_run_configuration_is_flat_and_overridden_by_flowers_rules(folder, tmp_path):
    app = describe(folder(), ["rate=2 model.name='gcn'", "model.head.width=16"])
    assert app.run_config == {"rate": 2, "steps": 3, "model.name": "gcn", "model.head.width": 16}
    assert (app.name, app.publisher, app.clients) == ("made-up", "tests", None)
    (tmp_path / "other.toml").write_text("steps = 7\n[model]\nname = 'mlp'\n")
    app = describe(folder(), [str(tmp_path / "other.toml")])
    assert app.run_config == {"rate": 0.5, "steps": 7, "model.name": "mlp", "model.head.width": 8}


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["rat=1"], "did you mean 'rate'"),
        (["model.head.depth=1"], "no such key"),
        (["rate"], "'key=value"),
        (["rate=fast"], "cannot be read"),
        (["rate= 1"], "holds no 'key=value'"),
        (["missing.toml"], "missing.toml"),
        (["rate=1", "x.toml"], "TOML files cannot be passed"),
    ],
)
def test_an_override_without_a_place(folder, overrides, words):
    with pytest.raises(ConfigError, match=words):
        describe(folder(), overrides)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("publisher", "author"), "publisher"),
        (('serverapp = "server:app"', ""), "serverapp"),
        (('"client:app"', '"client"'), "module:attribute"),
        (('"client:app"', "3"), "module:attribute"),
        (("[tool.flwr.app]", "[tool.flwr.apps]"), "tool.flwr.app"),
        (("rate = 0.5", "rate = [1, 2]"), "rate"),
        (("rate = 0.5", "rate = "), "not a Flower app"),
        (("[project]", "[projects]"), "project"),
    ],
)
def test_a_project_that_is_no_flower_app(folder, change, words):
    with pytest.raises(ConfigError, match=words):
        describe(folder(PROJECT.replace(*change)))


def test_folders_that_are_no_app(tmp_path):
    with pytest.raises(ConfigError, match="There is no directory"):
        describe(tmp_path / "nowhere")
    with pytest.raises(ConfigError, match=r"holds no pyproject\.toml"):
        describe(tmp_path)


@pytest.mark.parametrize(
    ("table", "count"),
    [
        (
            "[tool.flwr.federations]\ndefault='b'\n[tool.flwr.federations.a]\noptions.num-supernodes=3\n"
            "[tool.flwr.federations.b]\noptions.num-supernodes=4",
            4,
        ),
        ("[tool.flwr.federations.a]\noptions.num-supernodes=3", 3),
        ("[tool.flwr.federations]\ndefault='remote'\n[tool.flwr.federations.remote]\naddress='x:1'", None),
    ],
)
def test_the_default_federation_says_how_many_clients(folder, table, count):
    assert describe(folder(PROJECT + table)).clients == count


@pytest.mark.parametrize("count", ["0", "'many'", "true"])
def test_a_senseless_number_of_clients(folder, count):
    with pytest.raises(ConfigError, match="num-supernodes"):
        describe(folder(PROJECT + f"[tool.flwr.federations.a]\noptions.num-supernodes={count}"))


@pytest.mark.parametrize(
    ("server", "client", "words"),
    [
        (SERVER, "import pandas_of_mars\n" + CLIENT, "pip install 'pandas-of-mars>=2'"),
        (SERVER, "import sibling_that_is_not_there\n" + CLIENT, "sibling_that_is_not_there"),
        ("import client.more\n" + SERVER, CLIENT, "no module 'client.more'"),
        (SERVER, "def broken(:\n", "SyntaxError"),
        (SERVER, CLIENT + "1 / 0\n", r"ZeroDivisionError: division by zero \(client\.py, line 3\)"),
        (SERVER, "from server import nothing\n" + CLIENT, "ImportError"),
        ("application = 3\n", CLIENT, "has no attribute 'app'"),
        ("app = 3\n", CLIENT, "should be a ServerApp, found int"),
        (SERVER, SERVER, "should be a ClientApp, found ServerApp"),
        ("import sys\nsys.exit(0)\n", CLIENT, "SystemExit"),
    ],
)
def test_components_that_cannot_be_imported(folder, server, client, words):
    with pytest.raises(ConfigError, match=words) as caught:
        run_app(folder(server=server, client=client), engine=EngineOptions(workers=1), apart=False)
    assert caught.value.exit_code == 2
    assert "\n" not in str(caught.value)


def test_a_module_that_is_not_there(folder):
    with pytest.raises(ConfigError, match="there is no module 'nowhere'"):
        run_app(folder(PROJECT.replace("server:app", "nowhere:app")))


@pytest.mark.parametrize(
    ("options", "words"), [({"clients": 0}, "at least 1"), ({"max_failed_fraction": 1.5}, r"in \[0, 1\]")]
)
def test_arguments_out_of_range(folder, options, words):
    with pytest.raises(ConfigError, match=words):
        run_app(folder(), **options)


def test_a_server_that_sends_nothing_has_no_model_and_no_messages(folder):
    result = run_app(folder(), engine=EngineOptions(workers=1), apart=False)
    assert (result.status, result.messages, result.strategy, result.arrays) == ("no messages", 0, "", None)


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ("raise KeyError('weights')", "failed", "The ServerApp raised KeyError: 'weights'"),
        ("import sys; sys.exit(4)", "failed", "The ServerApp ended itself with code 4."),
        ("import sys; sys.exit(0)", "no messages", ""),
    ],
)
def test_a_server_that_raises_or_exits(folder, body, status, words):
    result = run_app(
        folder(server=SERVER.replace("pass", body)), engine=EngineOptions(workers=1), apart=False
    )
    assert (result.status, result.error) == (status, words)
    assert ("KeyError" in result.traceback) == ("KeyError" in words)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("[project]", "project = 3\n[other]", "is not a table"),
        ("[tool.flwr.app]", "[tool]\nflwr = 3\n[other]", "is not a table"),
        ("[tool.flwr.app]", "[tool.flwr]\nfederations = 3\n[tool.flwr.app]", "federations should be a table"),
        (
            "[tool.flwr.app]",
            "[tool.flwr.federations.a]\noptions = 3\n[tool.flwr.app]",
            "options of the app's",
        ),
    ],
)
def test_what_should_be_a_table_and_is_none(folder, old, new, words):
    project = PROJECT.split("[tool.flwr.app.components]")[0] if "3\n[other]" in new else PROJECT
    with pytest.raises(ConfigError, match=words):
        describe(folder(project.replace(old, new)))
