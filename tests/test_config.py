from pathlib import Path

import pytest
from pydantic import ValidationError

from fedsim.config import Experiment, load, parse
from fedsim.errors import ConfigError


def write(folder: Path, text: str, name: str = "experiment.toml") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def test_defaults_make_a_short_file_complete():
    experiment = parse({"rounds": 3})
    assert experiment.data.kind == "digits"
    assert experiment.seeds == (0,)
    assert experiment.federation.clients_per_round == experiment.federation.clients == 10
    assert experiment.attack is None
    assert experiment.failures.max_failed_fraction == 0


def test_clients_per_round_follows_clients():
    assert parse({"rounds": 1, "federation": {"clients": 7}}).federation.clients_per_round == 7


def test_a_string_is_short_for_a_kind():
    long = parse({"rounds": 1, "strategy": {"kind": "x"}, "federation": {"partition": {"kind": "y"}}})
    short = parse({"rounds": 1, "strategy": "x", "federation": {"partition": "y"}})
    assert long == short


def test_a_plugin_table_keeps_its_own_keys():
    table = parse({"rounds": 1, "model": {"kind": "mlp", "hidden": [3, 4]}}).model
    assert table.options == {"hidden": [3, 4]}


def test_a_table_without_kind_has_the_default_kind():
    assert parse({"rounds": 1, "client": {"epochs": 2}}).client.kind == "supervised"


def test_values_are_frozen():
    with pytest.raises(ValidationError):
        parse({"rounds": 1}).rounds = 2


def test_an_integer_is_a_number():
    experiment = parse({"rounds": 1, "engine": {"deadline": 2}, "failures": {"max_failed_fraction": 1}})
    assert experiment.engine.deadline == 2.0


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ({}, "rounds: missing."),
        ({"roundz": 3}, "unknown key 'roundz'; did you mean 'rounds'?"),
        (
            {"rounds": 1, "federation": {"client_per_round": 3}},
            r"'federation.client_per_round' in \[federation\]; did you mean 'clients_per_round'\?",
        ),
        (
            {"rounds": 1, "expect": {"test_accuracy": {"at_lest": 1}}},
            "'expect.test_accuracy.at_lest' .*did you mean 'at_least'",
        ),
        ({"rounds": 1, "engine": {"x1y2": 1}}, "unknown key 'engine.x1y2' .*known: backend, workers"),
        ({"rounds": "ten"}, 'rounds: found "ten", wanted an integer.'),
        ({"rounds": 2.5}, "rounds: found 2.5, wanted an integer."),
        ({"rounds": True}, "rounds: found true, wanted an integer."),
        ({"rounds": 0}, "rounds: found 0, wanted a number greater than or equal to 1."),
        ({"rounds": 1, "seeds": []}, r"seeds: found \[\], wanted a list of one or more different integers"),
        ({"rounds": 1, "seeds": [1, 1]}, r"seeds: found \[1, 1\]"),
        ({"rounds": 1, "seeds": [1.5]}, r"seeds\[0\]: found 1.5, wanted an integer."),
        ({"rounds": 1, "name": "a/b"}, 'name: found "a/b", wanted letters'),
        ({"rounds": 1, "strategy": 5}, "strategy: found 5, wanted a table."),
        (
            {"rounds": 1, "federation": {"clients": 3, "clients_per_round": 4}},
            "federation.clients_per_round: found 4, wanted at most federation.clients = 3.",
        ),
        ({"rounds": 1, "federation": {"split": [0.5, 0.1, 0.1]}}, "federation.split: .* sum to 1"),
        (
            {"rounds": 1, "engine": {"backend": "dask"}},
            "engine.backend: found \"dask\", wanted 'in-process' or 'ray'",
        ),
        ({"rounds": 1, "engine": {"address": "auto"}}, 'engine.address: .*engine.backend = "ray"'),
        ({"rounds": 1, "failures": {"max_failed_fraction": 1.5}}, "failures.max_failed_fraction: found 1.5"),
        ({"rounds": 1, "expect": {"a": {}}}, "expect.a: found {}, wanted at_least or at_most."),
        (
            {"rounds": 1, "expect": {"a": {"at_least": 0.5, "at_most": 0.4}}},
            "wanted at_least no higher than at_most.",
        ),
        ({"rounds": 1, "attack": {}}, "attack.kind: missing."),
    ],
)
def test_what_is_wrong_is_said_in_one_line_with_its_path(raw, message):
    with pytest.raises(ConfigError, match=message) as caught:
        parse(raw)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("attack", "message"),
    [
        ({"window": [0, 2]}, r"attack.window\[0\]: found 0"),
        ({"window": [2, 1]}, r"attack.window: found \[2, 1\], wanted rounds from 1 to 5"),
        ({"window": [1, 6]}, r"attack.window: found \[1, 6\]"),
        ({"malicious": 11}, "attack.malicious: found 11, wanted at most federation.clients = 10"),
        (
            {"malicious": [0, 10]},
            r"attack.malicious: found \[0, 10\], wanted different partitions from 0 to 9",
        ),
        ({"malicious": [1, 1]}, "wanted different partitions"),
        ({"malicious": "all"}, 'attack.malicious: found "all", wanted an integer or a list.'),
        ({"malicious": 4, "participation": "forced"}, "attack.participation: .*4 malicious clients.* is 3"),
    ],
)
def test_an_attack_must_fit_the_run(attack, message):
    raw = {"rounds": 5, "federation": {"clients_per_round": 3}, "attack": {"kind": "a", **attack}}
    with pytest.raises(ConfigError, match=message):
        parse(raw)


def test_an_attack_on_all_rounds_and_clients_is_legal():
    raw = {"rounds": 5, "attack": {"kind": "a", "malicious": 10, "window": [1, 5], "z": 1.5}}
    attack = parse(raw).attack
    assert attack is not None
    assert (attack.malicious, attack.window, attack.options) == (10, (1, 5), {"z": 1.5})


@pytest.mark.parametrize(
    ("override", "path", "value"),
    [
        ("rounds=5", ("rounds",), 5),
        ("strategy.kind=fedavg", ("strategy", "kind"), "fedavg"),
        ("engine.backend=ray", ("engine", "backend"), "ray"),
        ('engine.backend="ray"', ("engine", "backend"), "ray"),
        ("engine.deadline=2", ("engine", "deadline"), 2.0),
        ("seeds=[11, 12]", ("seeds",), (11, 12)),
        ("seed=4", ("seeds",), (4,)),
        ("federation.clients_per_round = 3", ("federation", "clients_per_round"), 3),
    ],
)
def test_overrides(tmp_path, override, path, value):
    found = load(write(tmp_path, 'rounds = 2\nseeds = [1]\nstrategy = "krum"\n'), [override])
    for key in path:
        found = getattr(found, key)
    assert found == value


def test_a_string_table_takes_further_keys(tmp_path):
    experiment = load(write(tmp_path, 'rounds = 2\nstrategy = "krum"\n'), ["strategy.byzantine=2"])
    assert (experiment.strategy.kind, experiment.strategy.options) == ("krum", {"byzantine": 2})


def test_a_value_with_a_line_break_stays_one_string(tmp_path):
    path = write(tmp_path, "rounds = 2\n")
    assert load(path, ["data.name=x\nrounds = 9"]).data.options == {"name": "x\nrounds = 9"}


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("rounds", "wanted key.path=value"),
        ("=3", "wanted key.path=value"),
        ("a..b=3", "wanted key.path=value"),
        ("rounds.kind=3", "rounds is 2, not a table"),
        ("strategi.kind=fedavg", "unknown key 'strategi'; did you mean 'strategy'"),
        ("rounds=many", 'rounds: found "many", wanted an integer'),
    ],
)
def test_overrides_that_are_refused(tmp_path, override, message):
    with pytest.raises(ConfigError, match=message):
        load(write(tmp_path, "rounds = 2\n"), [override])


def test_a_missing_file(tmp_path):
    with pytest.raises(ConfigError, match=r"nothing.toml: no such file."):
        load(tmp_path / "nothing.toml")


def test_a_file_that_is_no_toml(tmp_path):
    with pytest.raises(ConfigError, match=r"not TOML: .*line 1"):
        load(write(tmp_path, "rounds = \n"))
    with pytest.raises(ConfigError, match="nested too deeply"):
        load(write(tmp_path, "a = " + "[" * 3000))


def test_seed_and_seeds_together(tmp_path):
    with pytest.raises(ConfigError, match="seed and seeds are both given"):
        load(write(tmp_path, "rounds = 2\nseed = 1\nseeds = [2]\n"))


@pytest.mark.parametrize(("file", "name"), [("my run.toml", "my-run"), ("experiment.toml", "folder")])
def test_the_name_comes_from_the_file_or_its_folder(tmp_path, file, name):
    folder = tmp_path / "folder"
    folder.mkdir()
    assert load(write(folder, "rounds = 2\n", file)).name == name


def test_the_digest_changes_with_what_touches_numbers_alone():
    base = {"rounds": 3}
    digest = parse(base).digest()
    for same in ({"seeds": [5]}, {"name": "b"}, {"engine": {"workers": 4}}, {"checkpoint": {"every": 2}}):
        assert parse(base | same).digest() == digest
    for other in (
        {"rounds": 4},
        {"model": "cnn"},
        {"engine": {"dtype": "float64"}},
        {"client": {"epochs": 2}},
    ):
        assert parse(base | other).digest() != digest


def test_unknown_keys_come_before_other_faults():
    with pytest.raises(ConfigError, match="unknown key 'rouns'"):
        parse({"rouns": 3, "seeds": "x"})


def test_the_schema_has_no_hidden_options():
    assert set(Experiment.model_fields) >= {"name", "seeds", "rounds", "data", "federation", "expect"}
