import os
import subprocess
import sys
from dataclasses import dataclass

import pytest

from fedsim.errors import ConfigError, PluginError
from fedsim.plugins import GROUPS, available, build, describe, options_of, resolve, search_in
from fedsim.training.optimizers import Adam, Sgd
from fedsim.training.schedules import Cosine

OPTIMIZER = "client.optimizer"


libraries = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of PyG and Flower while imported


@libraries
@pytest.mark.parametrize("group", GROUPS)
def test_every_entry_point_can_be_imported(group):
    for name in available(group):
        resolve(group, name, "x")


def test_a_table_becomes_an_object():
    assert build("optimizers", {"kind": "sgd", "learning_rate": 2}, OPTIMIZER) == Sgd(learning_rate=2.0)


def test_a_list_becomes_a_tuple():
    built = build("optimizers", {"kind": "adam", "learning_rate": 0.1, "betas": [0.5, 0.9]}, OPTIMIZER)
    assert built == Adam(learning_rate=0.1, betas=(0.5, 0.9))


def test_a_dotted_path():
    kind = "fedsim.training.optimizers:Sgd"
    assert build("optimizers", {"kind": kind, "learning_rate": 0.1}, OPTIMIZER) == Sgd(learning_rate=0.1)


def test_injected_values_reach_nested_tables():
    built = build("clients", {"kind": "supervised", "schedule": "cosine"}, "client", rounds=7, model=object())
    assert built.schedule == Cosine(rounds=7)


def test_an_injected_number_may_be_overridden():
    assert build("schedules", {"kind": "cosine", "rounds": 3}, "x", rounds=7) == Cosine(rounds=3)


def test_an_injected_object_may_not():
    with pytest.raises(ConfigError, match=r"client.model: is set by the platform from the table \[model\]"):
        build("clients", {"kind": "supervised", "model": "mlp"}, "client", model=object())


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (
            {"kind": "sgdd"},
            r"client.optimizer.kind: no optimizers plugin is called 'sgdd'; did you mean 'sgd'\?",
        ),
        ({"kind": "quite other"}, "known: adam, sgd"),
        ({"kind": 3}, r"client.optimizer.kind: found 3, wanted a plugin's name \(adam, sgd\)"),
        ({"kind": "no_such_module:X"}, "importing 'no_such_module' raised ModuleNotFoundError"),
        ({"kind": "fedsim.training.optimizers:Sgdd"}, "has no 'Sgdd'; did you mean 'Sgd'"),
        ({"kind": "fedsim.rng:derive"}, "'derive' is not a dataclass"),
        ({"kind": "fedsim.contracts:DataSpec"}, "missing; DataSpec needs it"),
        (
            {"kind": "fedsim.training.schedules:Exponential", "decay": 1},
            "lacks init, step, learning_rate, which every optimizers plugin has",
        ),
    ],
)
def test_names_that_resolve_to_nothing_usable(table, message):
    with pytest.raises(ConfigError, match=message):
        build("optimizers", table, OPTIMIZER)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"learning_rat": 1}, "unknown key 'client.optimizer.learning_rat' .*did you mean 'learning_rate'"),
        ({}, r"client.optimizer.learning_rate: missing; Sgd needs it \(float\)."),
        ({"learning_rate": "x"}, 'client.optimizer.learning_rate: found "x", wanted a number.'),
        ({"learning_rate": True}, "client.optimizer.learning_rate: found true, wanted a number."),
        ({"learning_rate": -1}, "client.optimizer.learning_rate must be above 0"),
        (
            {"learning_rate": 1, "nesterov": "yes"},
            'client.optimizer.nesterov: found "yes", wanted true or false.',
        ),
    ],
)
def test_keys_are_checked_with_their_path(options, message):
    with pytest.raises(ConfigError, match=message):
        build("optimizers", {"kind": "sgd", **options}, OPTIMIZER)


def test_errors_of_nested_tables_have_the_whole_path():
    table = {"kind": "supervised", "optimizer": {"kind": "sgd", "learning_rate": 0}}
    with pytest.raises(ConfigError, match=r"client\.optimizer\.learning_rate must be above 0"):
        build("clients", table, "client", model=object())


def test_a_wrong_name_is_a_plugin_error():
    with pytest.raises(PluginError):
        resolve("strategies", "fedavgg", "strategy")


@libraries
def test_a_stock_flower_strategy_goes_through_its_adapter():
    built = build(
        "strategies", {"kind": "flwr.serverapp.strategy:FedAvgM", "server_momentum": 0.5}, "strategy"
    )
    assert hasattr(built, "step")


@dataclass(frozen=True, kw_only=True)
class Inner:
    depth: int


@dataclass(frozen=True, kw_only=True)
class Outer:
    inner: Inner
    names: tuple[str, ...] = ()


def test_nested_dataclasses_refuse_unknown_keys_too(monkeypatch):
    kind = f"{__name__}:Outer"
    monkeypatch.setitem(sys.modules, __name__, sys.modules[Outer.__module__])
    built = build("data", {"kind": kind, "inner": {"depth": 2}, "names": ["a"]}, "data")
    assert built == Outer(inner=Inner(depth=2), names=("a",))
    with pytest.raises(ConfigError, match=r"unknown key 'data.inner.dept'.*did you mean 'depth'"):
        build("data", {"kind": kind, "inner": {"dept": 2}}, "data")


def test_a_plugin_beside_the_experiment_is_found_here_and_in_child_processes(tmp_path, monkeypatch):
    (tmp_path / "my_optimizer_for_a_test.py").write_text(
        "from fedsim.training.optimizers import Sgd\nclass Mine(Sgd):\n    pass\n", encoding="utf-8"
    )
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv("PYTHONPATH", os.environ.get("PYTHONPATH", ""))
    search_in(tmp_path)
    assert (
        type(build("optimizers", {"kind": "my_optimizer_for_a_test:Mine", "learning_rate": 1}, "x")).__name__
        == "Mine"
    )
    subprocess.run([sys.executable, "-c", "import my_optimizer_for_a_test"], check=True, timeout=60)


def test_a_module_that_raises_is_named(tmp_path, monkeypatch):
    (tmp_path / "my_broken_module.py").write_text("raise RuntimeError('boom')\n", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(PluginError, match="importing 'my_broken_module' raised RuntimeError: boom"):
        resolve("clients", "my_broken_module:X", "client")


@pytest.mark.parametrize("words", ["import os; os._exit(0)", "from os import _exit; _exit(0)"])
def test_a_module_that_ends_the_process_is_named(tmp_path, monkeypatch, words):
    (tmp_path / "my_ending_module.py").write_text(words + "\n", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "my_ending_module", raising=False)
    with pytest.raises(PluginError, match=r"importing 'my_ending_module' raised SystemExit: os._exit\(0\)"):
        resolve("clients", "my_ending_module:X", "client")


def test_options_tell_types_and_defaults():
    by_name = {option.name: option for option in options_of(Sgd)}
    assert (by_name["learning_rate"].type, by_name["learning_rate"].default) == ("float", ...)
    assert by_name["nesterov"].default is False


def test_described_objects_are_json_values():
    assert describe(Sgd(learning_rate=0.1)) == {
        "class": "fedsim.training.optimizers:Sgd",
        "learning_rate": 0.1,
        "momentum": 0.0,
        "weight_decay": 0.0,
        "nesterov": False,
    }
