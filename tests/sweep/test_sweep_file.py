"""A sweep file as cells, and what is refused before anything runs."""

import pytest

from fedsim.errors import ConfigError
from fedsim.sweep.cells import cells_of, check_cells, chosen
from fedsim.sweep.file import read_sweep


def read(path, *overrides):
    sweep = read_sweep(path, overrides)
    return sweep, cells_of(sweep)


def refusal(path):
    with pytest.raises(ConfigError) as refused:
        check_cells(*read(path), 0)
    text = str(refused.value)
    assert "\n" not in text
    return text


def test_every_combination_is_a_cell_and_the_last_axis_is_fastest(write):
    _, cells = read(write('[sweep]\nrounds = [1, 2]\nstrategy = ["fedavg", "median"]\n'))
    assert [cell.name for cell in cells] == [
        "rounds=1, strategy=fedavg",
        "rounds=1, strategy=median",
        "rounds=2, strategy=fedavg",
        "rounds=2, strategy=median",
    ]
    assert [(cell.experiment.rounds, cell.experiment.strategy.kind) for cell in cells] == [
        (1, "fedavg"),
        (1, "median"),
        (2, "fedavg"),
        (2, "median"),
    ]
    assert all(cell.experiment.seeds == (0, 1) for cell in cells)


def test_a_quoted_deep_key_reaches_its_table_and_leaves_the_rest(write):
    _, cells = read(write('[sweep]\n"client.optimizer.learning_rate" = [0.5, 1]\n'))
    assert [cell.experiment.client.options["optimizer"] for cell in cells] == [
        {"kind": "sgd", "learning_rate": 0.5},
        {"kind": "sgd", "learning_rate": 1},
    ]


def test_a_named_axis_of_a_key_has_a_value_per_label(write):
    tables = "attack = { kind = 'honest', malicious = 2, window = [1, 2] }\n"
    tables += "[sweep.attack]\nnone = 'honest'\nloud = { kind = 'plugins_of_a_sweep:Patch', scale = 2 }\n"
    import sys

    sys.path.append(str(write(tables).parent))
    _, cells = read(write(tables))
    assert [cell.choices["attack"] for cell in cells] == ["none", "loud"]
    loud = cells[1].experiment.attack
    assert (loud.kind, loud.options) == ("plugins_of_a_sweep:Patch", {"scale": 2})
    assert (loud.malicious, loud.window) == (2, (1, 2))  # said once, in [attack]


def test_an_axis_of_its_own_name_changes_several_tables_at_once(write):
    tables = "[sweep.pace]\nslow = { rounds = 5, client.optimizer.learning_rate = 0.01 }\n"
    tables += 'fast = { rounds = 2, "client.optimizer.learning_rate" = 0.5, strategy = "median" }\n'
    _, (slow, fast) = read(write(tables))
    assert (slow.experiment.rounds, slow.experiment.strategy.kind) == (5, "fedavg")
    assert slow.experiment.client.options["optimizer"]["learning_rate"] == 0.01
    assert (fast.experiment.rounds, fast.experiment.strategy.kind) == (2, "median")
    assert fast.experiment.client.options["optimizer"]["learning_rate"] == 0.5


def test_two_axes_may_set_different_keys_of_one_table(write):
    tables = '[sweep]\n"strategy.before" = [[], [{ kind = "nnm", byzantine = 1 }]]\n'
    _, cells = read(write(tables + 'strategy = ["fedavg", "median"]\n'))
    assert [cell.experiment.strategy.kind for cell in cells] == ["fedavg", "median"] * 2
    assert cells[3].experiment.strategy.options["before"] == [{"kind": "nnm", "byzantine": 1}]


def test_labels_of_tables_are_kinds_where_these_differ(write):
    tables = '[sweep]\nstrategy = ["fedavg", { kind = "krum", byzantine = 1 }]\n'
    assert [cell.name for cell in read(write(tables))[1]] == ["strategy=fedavg", "strategy=krum"]
    tables = '[sweep]\nstrategy = [{ kind = "krum", byzantine = 0 }, { kind = "krum", byzantine = 1 }]\n'
    assert [cell.choices["strategy"] for cell in read(write(tables))[1]] == [
        "krum byzantine=0",
        "krum byzantine=1",
    ]


def test_overrides_change_the_file_and_its_report(write):
    sweep, cells = read(write("[sweep]\nrounds = [1, 2]\n"), "seeds=[7]", 'sweep.report.compare="1"')
    assert cells[0].experiment.seeds == (7,)
    assert sweep.baselines == (("rounds", "1"),)


def test_cells_are_chosen_by_axis_and_label(write):
    sweep, cells = read(write('[sweep]\nrounds = [1, 2, 3]\nstrategy = ["fedavg", "median"]\n'))
    picked = chosen(cells, sweep.axes, ["rounds=1,3", "strategy=median"])
    assert [cell.name for cell in picked] == ["rounds=1, strategy=median", "rounds=3, strategy=median"]
    with pytest.raises(ConfigError, match=r"axis 'strategy' has no value 'medien'; did you mean 'median'"):
        chosen(cells, sweep.axes, ["strategy=medien"])
    with pytest.raises(ConfigError, match=r"no axis 'strategi'; did you mean 'strategy'"):
        chosen(cells, sweep.axes, ["strategi=median"])


@pytest.mark.parametrize(
    ("tables", "words"),
    [
        ("", "no table [sweep]"),
        ("[sweep]\n", "sweep: no axis"),
        ("[sweep]\nseeds = [1, 2]\n", "sweep.seeds: cannot be an axis"),
        ("[sweep]\nrounds = 3\n", "sweep.rounds: found 3, wanted a list of values"),
        ("[sweep]\nrounds = []\n", "sweep.rounds: found []"),
        ("[sweep]\nrounds = [1, 1]\n", 'sweep.rounds: has the value "1" twice'),
        ("[sweep]\nround = [1, 2]\n", "sweep.round: no key of an experiment file; did you mean 'rounds'?"),
        ("[sweep.pace]\nslow = 3\n", "sweep.pace.slow: found 3, wanted a table of changes"),
        (
            "[sweep.pace]\nslow = { round = 3 }\n",
            "sweep.pace.slow.round: unknown key; did you mean 'rounds'?",
        ),
        ("[sweep.pace]\nslow = { seeds = [3] }\n", "sweep.pace.slow.seeds: cannot be changed"),
        (
            "[sweep]\nclient.optimizer = ['sgd', 'adam']\n",
            'sweep.client.optimizer: a deep key needs quotes: "client.optimizer"',
        ),
        (
            '[sweep]\n"client.epochs" = [1, 2]\n[sweep.pace]\nslow = { client = { epochs = 3 } }\n',
            "sweep.client.epochs and sweep.pace both set 'client.epochs'",
        ),
        ("[sweep]\nrounds = [1]\n[sweep.report]\nrow = 'rounds'\n", "unknown key 'sweep.report.row'"),
        (
            "[sweep]\nrounds = [1]\n[sweep.report]\nrows = 'round'\n",
            "no axis is called 'round'; did you mean",
        ),
        ("[sweep]\nrounds = [1]\n[sweep.report]\ncompare = '2'\n", "compare: no axis has the value '2'"),
        (
            "[sweep]\nrounds = [1, 2]\nstrategy = ['fedavg', 'krumm']\n",
            "cell rounds=1, strategy=krumm: strategy.kind: no strategies plugin is called 'krumm'; did you",
        ),
        (
            "[sweep]\n'client.epoch' = [1, 2]\n",
            "cell client.epoch=1: unknown key 'client.epoch' for kind Supervised; did you mean 'epochs'?",
        ),
        ("[sweep]\n'evaluate.ever' = [1]\n", "cell evaluate.ever=1: unknown key 'evaluate.ever'"),
        ("[sweep]\nrounds = [1, -1]\n", "cell rounds=-1: rounds: found -1"),
        ("[sweep]\n'federation.clients_per_round' = [4, 5]\n", "at most federation.clients = 4"),
        ("[sweep]\n'engine.tier' = ['T0']\n", 'engine.tier: a sweep plays its cells in "T1" or "T2"'),
        (
            "[sweep]\nrounds = [1]\n[sweep.report]\nmetrics = ['test_acuracy.last']\n",
            "sweep.report.metrics: 'test_acuracy.last' is not measured; did you mean 'test_accuracy.last'?",
        ),
        (
            "[sweep]\nrounds = [1]\n[sweep.report]\nmetrics = 'attack_success.at_stop'\n",
            "sweep.report.metrics: 'attack_success.at_stop' is not measured",
        ),
        (
            "[sweep]\nrounds = [1]\n[sweep.report]\ncurve = 'test_los'\n",
            "sweep.report.curve: 'test_los' is not measured; did you mean 'test_loss'?",
        ),
        (
            "evaluate = { clients = 'none' }\n[sweep]\nrounds = [1]\nstrategy = ['median']\n"
            "[sweep.report]\ntune = 'rounds'\n",
            "sweep.report.by: cell rounds=1, strategy=median: 'client_val_accuracy.best' is not measured",
        ),
        ("[sweep]\nrounds = [1]\n[sweep.report]\nmatched = -1\n", "sweep.report.matched: found -1"),
        ("[expect]\naccurcy = { at_least = 1 }\n[sweep]\nrounds = [1]\n", "cell rounds=1: expect.accurcy"),
    ],
)
def test_refused_in_one_line_that_names_the_place(write, tables, words):
    path = write(tables)
    text = refusal(path)
    assert words in text
    assert text.startswith(f"{path}: ")


def test_data_that_cannot_be_divided_is_refused_before_anything_runs(write):
    tables = '[sweep]\n"federation.clients" = [4, 5000]\n'
    base = "rounds = 1\nmodel = 'logistic'\n"
    with pytest.raises(ConfigError, match=r"cell federation\.clients=5000: "):
        check_cells(*read(write(tables, base)), 0)


def test_metrics_that_a_client_method_may_add_are_let_pass(write):
    metrics = ["client_diagnostic_curvature.best", "test_accuracy.validation_selected"]
    check_cells(*read(write(f"[sweep]\nrounds = [1]\n[sweep.report]\nmetrics = {metrics}\n")), 0)


def test_metrics_of_an_attack_are_known_where_one_cell_has_it(write):
    metrics = ["attack_success.plus_25", "attack_lifespan.smoothed", "detector.f1", "defence_active"]
    metrics += ["test_accuracy.change", "attack_success.above_floor"]
    tables = f"""
    [sweep.attack]
    none = {{ kind = "honest", malicious = 1, window = [1, 2] }}
    patch = {{ kind = "badnets", malicious = 1, window = [1, 2], patch = {{ height = 2, width = 2 }} }}
    [sweep]
    rounds = [27]
    [sweep.report]
    metrics = {metrics}
    """
    check_cells(*read(write(tables)), 0)
    with pytest.raises(ConfigError, match=r"'attack_success.plus_25' is not measured; did you mean"):
        check_cells(*read(write(tables.replace("[27]", "[26]"))), 0)
