"""Laws that every registered attack obeys."""

import ast
import inspect
import json
import re
from importlib import import_module
from pathlib import Path

import pytest
import torch

import attacks
from fedsim.contracts import Cohort, DataSpec
from fedsim.errors import ConfigError, RoundError
from fedsim.plugins import available, build, options_of, resolve
from fedsim.threat import Knowledge, overrides

ALL = sorted(available("attacks"))
ACTING = [name for name in ALL if name != "honest"]
STATISTICS = {"median"}  # the name of a rule, but also of a number


def with_option(name):
    return [
        kind for kind in ALL if name in {one.name for one in options_of(resolve("attacks", kind, "attack"))}
    ]


@pytest.mark.parametrize("kind", ACTING)
def test_a_run_that_was_stopped_goes_on_with_the_same_bits(played, played_whole, kind):
    whole = played_whole(kind)
    with pytest.raises(KeyboardInterrupt):
        played(kind, "stopped", stop=3)
    resumed = played(kind, "stopped", resume=True)
    assert resumed.sha == whole.sha
    assert resumed.metrics == whole.metrics


@pytest.mark.parametrize("kind", ACTING)
def test_nothing_happens_before_the_window_and_something_in_it(played_whole, kind):
    ours, honest = played_whole(kind), played_whole("honest")
    for mine, clean in zip(ours.rounds[:2], honest.rounds[:2], strict=True):
        for name in ("train_loss", "test_loss"):
            assert mine["metrics"][name] == clean["metrics"][name]
    assert ours.sha != honest.sha


@pytest.mark.slow
@pytest.mark.parametrize("kind", ACTING)
def test_the_number_of_workers_does_not_matter(played, played_whole, kind):
    one, two = played_whole(kind), played(kind, engine={"workers": 2})
    assert one.sha == two.sha
    assert one.metrics == two.metrics


def test_the_number_of_workers_does_not_matter_for_one_that_acts_in_workers(played, played_whole):
    assert played("dba", engine={"workers": 2}).sha == played_whole("dba").sha


@pytest.mark.parametrize("kind", ACTING)
def test_stacked_clients_agree_with_one_at_a_time(played, kind):
    one = played(kind, "one", engine={"dtype": "float64"})
    many = played(kind, "many", engine={"dtype": "float64", "tier": "T2"})
    for name, tensor in one.tensors.items():
        torch.testing.assert_close(many.tensors[name], tensor, rtol=1e-6, atol=1e-9)


def ready(adversary):
    """The attack's state and a cohort of the window's first round, in which both members are."""
    layout, parts = adversary.threat.layout, adversary.parts
    vector, integers = layout.flatten(parts.initial), layout.integers_of(parts.initial)
    generator = torch.Generator().manual_seed(5)
    state = adversary.init()
    for round_ in (1, 2, 3):
        vector = vector + 0.01 * torch.randn(layout.size, generator=generator)
        state = adversary.observe(state, round_, vector, integers)
    cohort = Cohort(
        round=3,
        partitions=(0, 1, 3, 4),
        updates=0.1 * torch.randn(4, layout.size, generator=generator),
        examples=torch.tensor([30, 31, 32, 33]),
        layout=layout,
    )
    return state, cohort, vector, integers


def sent(adversary, state, cohort, vector, integers, changed=()):
    rows = cohort.updates.clone()
    rows[list(changed)] *= -2
    other = Cohort(
        round=3, partitions=cohort.partitions, updates=rows, examples=cohort.examples, layout=cohort.layout
    )
    kept = rows.clone()
    found = adversary.rewrite(state, other, vector, integers, lambda all_rows: all_rows.mean(dim=0)).updates
    assert torch.equal(rows, kept)
    return found


@pytest.mark.parametrize(
    "kind",
    [k for k in ACTING if getattr(resolve("attacks", k, "").craft, "__module__", "") != "fedsim.threat"],
)
def test_what_is_sent_depends_on_what_may_be_known_alone(adversary_of, kind):
    adversary = adversary_of(kind)
    state, cohort, vector, integers = ready(adversary)
    before = sent(adversary, state, cohort, vector, integers)
    assert torch.equal(before[[0, 2]], cohort.updates[[0, 2]])  # honest clients' rows
    if adversary.attack.knows < Knowledge.EVERYTHING:
        benign = sent(adversary, state, cohort, vector, integers, changed=(0, 2))
        assert torch.equal(benign[[1, 3]], before[[1, 3]])
    if adversary.attack.knows < Knowledge.COLLUDERS:
        colluder = sent(adversary, state, cohort, vector, integers, changed=(3,))
        assert torch.equal(colluder[1], before[1])


@pytest.mark.parametrize("kind", ALL)
def test_triggers_never_count_their_own_class_and_change_no_argument(adversary_of, kind):
    adversary = adversary_of(kind)
    if not overrides(adversary.attack, "poison"):
        assert adversary.poison(adversary.init()) is None
        return
    state, _, _, _ = ready(adversary)
    batch = adversary.parts.data.test.batch()
    x, y = batch.x.clone(), batch.y.clone()
    found = adversary.poison(state)(batch)
    assert torch.equal(batch.x, x)
    assert torch.equal(batch.y, y)
    assert found.x.shape == x.shape
    same = found.y == y
    assert torch.equal(found.x[same], x[same])
    assert (found.y != y).any()
    assert found.x.min() >= 0.0  # digits are standardised by nothing, so a batch shows plain pixels
    assert found.x.max() <= 1.0


NUMBERS = [
    (kind, option.name)
    for kind in ALL
    for option in options_of(resolve("attacks", kind, "attack"))
    if re.search(r"\b(int|float)\b", option.type) and "tuple" not in option.type
]


@pytest.mark.parametrize(("kind", "name"), NUMBERS)
def test_a_number_that_makes_no_sense_is_one_line_that_names_it(kind, name):
    whole = {one.name: one for one in options_of(resolve("attacks", kind, "attack"))}
    value = -7.5 if "float" in whole[name].type else -7
    with pytest.raises(ConfigError) as refused:
        build("attacks", {"kind": kind, name: value}, "attack")
    assert re.match(rf"attack\.(.* )?{name}\b", str(refused.value))
    assert "7" in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("kind", with_option("patch"))
@pytest.mark.parametrize(
    "spec", [DataSpec("rows", (14,), 10), DataSpec("nodes", (1433,), 7), DataSpec("graphs", (7,), 3), None]
)
def test_a_pixel_trigger_where_there_are_no_pixels_is_one_line(make_threat, kind, spec):
    attack = build("attacks", {"kind": kind}, "attack")
    with pytest.raises(ConfigError, match=r"^attack\.kind: a pixel trigger needs images") as refused:
        attack.init(make_threat(spec=spec, pixels=None), torch.Generator())
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("kind", with_option("patch"))
def test_a_target_that_the_data_lack_is_one_line(make_threat, kind):
    attack = build("attacks", {"kind": kind, "target": 10}, "attack")
    with pytest.raises(ConfigError, match=r"^attack\.target must be a label from 0 to 9, found 10\.$"):
        attack.init(make_threat(), torch.Generator())


PERSONAL = {"kind": "fedper", "optimizer": {"kind": "sgd", "learning_rate": 0.1}}


@pytest.mark.parametrize(
    ("kind", "options"),
    [("a3fl", {}), ("cto_vpa", {}), ("cto_vpa", {"search_steps": 0, "force_target_row": True})],
)
def test_a_model_of_which_clients_keep_a_part_is_not_searched_on(adversary_of, kind, options):
    adversary = adversary_of(kind, {"client": PERSONAL}, **options)
    state, parts = adversary.init(), adversary.parts
    model, integers = parts.layout.flatten(parts.initial), parts.layout.integers_of(parts.initial)
    for round_ in (1, 2):
        state = adversary.observe(state, round_, model, integers)
    with pytest.raises(RoundError, match=r"clients keep '.*' to themselves: switch off"):
        adversary.observe(state, 3, model, integers)


FILES = sorted(Path(attacks.__file__).parent.rglob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_no_attack_knows_a_defence_by_name(path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    rules = set(available("strategies")) - STATISTICS
    classes = {resolve("strategies", kind, "").__name__ for kind in rules}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            assert node.value not in rules, node.value
        if isinstance(node, ast.Name):
            assert node.id not in classes, node.id
        if isinstance(node, ast.Attribute):
            assert node.attr != "strategy"


@pytest.mark.parametrize("kind", ACTING)
def test_a_table_can_be_written_with_defaults_alone_and_is_json(kind):
    built = build("attacks", {"kind": kind}, "attack")
    assert inspect.getdoc(type(built))
    assert inspect.getdoc(import_module(type(built).__module__))
    json.dumps({one.name: str(one.default) for one in options_of(type(built))})
