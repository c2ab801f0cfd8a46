"""Modules of foreign apps: importable inside their scope, invisible outside, never mixed up."""

import json
import sys

import pytest

from fedsim.flower.foreign.modules import AppModules


@pytest.fixture
def make_app(tmp_path):
    def make(name, files):
        for path, text in files.items():
            target = tmp_path / name / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text)
        return AppModules(tmp_path / name)

    return make


def test_two_apps_with_the_same_module_names(make_app):
    first = make_app("first", {"task.py": "NAME = 'first'", "app.py": "import task\nname = task.NAME"})
    second = make_app("second", {"task.py": "NAME = 'second'", "app.py": "import task\nname = task.NAME"})
    with first.active():
        assert first.load("app:name") == "first"
        with second.active():
            assert second.load("app:name") == "second"
        import task

        assert task.NAME == "first"
    assert not {"task", "app"} & sys.modules.keys()


def test_two_sides_of_one_app_have_their_own_module_objects(make_app, tmp_path):
    server = make_app(
        "one", {"task.py": "SEEN = []", "pkg/__init__.py": "", "pkg/x.py": "from task import SEEN"}
    )
    with server.active():
        server.load("task:SEEN").append("server")
        clients = AppModules(tmp_path / "one")
        with clients.active():
            assert clients.load("pkg.x:SEEN") == []
        assert server.load("pkg.x:SEEN") == ["server"]


def test_modules_keep_their_state_from_scope_to_scope(make_app):
    app = make_app("app", {"task.py": "SEEN = []"})
    for count in range(3):
        with app.active():
            seen = app.load("task:SEEN")
            assert len(seen) == count
            seen.append(1)


def test_the_path_and_hidden_modules_come_back_even_after_an_error(make_app):
    app = make_app("app", {"json.py": "raise RuntimeError", "yaml_like.py": "1 / 0"})
    before = list(sys.path)
    with pytest.raises(ZeroDivisionError), app.active():
        app.load("yaml_like:x")
    assert sys.path == before
    assert sys.modules["json"] is json
    assert "yaml_like" not in sys.modules


def test_neither_python_nor_flower_is_replaced(make_app):
    app = make_app(
        "app", {"json.py": "x = 1", "flwr/__init__.py": "", "torch/__init__.py": "", "app.py": "x = 1"}
    )
    import flwr

    with app.active():
        import torch

        assert sys.modules["json"] is json
        assert sys.modules["flwr"] is flwr
        assert torch.__version__
    assert app.has("app")
    assert not app.has("json")


def test_a_folder_of_data_hides_no_installed_package(make_app):
    app = make_app("app", {"scipy/readme.txt": "data", "app.py": "import scipy\nversion = scipy.__version__"})
    with app.active():
        assert app.load("app:version")
