"""What holds for every registered rule: a table of rules, and one test per law."""

from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch

from fedsim import plugins
from fedsim.errors import ConfigError, RoundError
from fedsim.run.checkpoint import Checkpoint, RunState, load, save


@dataclass(frozen=True)
class Case:
    """A rule as the laws see it.

    Attributes:
        options: its table, without noise.
        least: the smallest cohort for which it is defined.
        moves: its update moves with the updates (and a trusted one).
        scales: its update is multiplied by what all updates are multiplied by.
        withstands: its update stays near honest ones with 2 of 11 clients far away.
        unanimous: the update of a cohort that agrees is what it agrees on.
        linear: the update is the sum of the rows times the weights.
        pointwise: no weights.
        refused: options it refuses, with the beginning of the message.
    """

    options: dict[str, Any] = field(default_factory=dict)
    least: int = 1
    moves: bool = False
    scales: bool = True
    withstands: bool = True
    unanimous: bool = True
    linear: bool = True
    pointwise: bool = False
    refused: tuple[tuple[dict[str, Any], str], ...] = ()


NEGATIVE = (({"byzantine": -1}, "strategy.byzantine must be at least 0, found -1"),)
ADAPTIVE = Case(
    options={"learning_rate": 0.1},
    scales=False,
    withstands=False,
    unanimous=False,
    linear=False,
    refused=(
        ({"learning_rate": 0.0}, "strategy.learning_rate must be above 0, found 0.0"),
        ({"learning_rate": 1.0, "beta1": 1.0}, r"strategy.beta1 must lie in \[0, 1\), found 1.0"),
        ({"learning_rate": 1.0, "beta2": -0.1}, r"strategy.beta2 must lie in \[0, 1\), found -0.1"),
        ({"learning_rate": 1.0, "tau": 0.0}, "strategy.tau must be above 0, found 0.0"),
    ),
)
CASES = {
    "fedavg": Case(moves=True, withstands=False),
    "median": Case(moves=True, pointwise=True),
    "trimmed_mean": Case({"byzantine": 2}, least=5, moves=True, pointwise=True, refused=NEGATIVE),
    "krum": Case({"byzantine": 2}, least=7, moves=True, refused=NEGATIVE),
    "multi_krum": Case(
        {"byzantine": 2},
        least=7,
        moves=True,
        refused=(*NEGATIVE, ({"byzantine": 1, "keep": 0}, "strategy.keep must be at least 1, found 0")),
    ),
    "geometric_median": Case(
        {"weighted": False},
        moves=True,
        refused=(
            ({"iterations": 0}, "strategy.iterations must be at least 1, found 0"),
            ({"smoothing": 0.0}, "strategy.smoothing must be above 0, found 0.0"),
            ({"tolerance": 1.0}, r"strategy.tolerance must lie in \[0, 1\), found 1.0"),
        ),
    ),
    "centred_clipping": Case(
        {"radius": 20.0},
        scales=False,
        refused=(
            ({"radius": 0.0}, "strategy.radius must be above 0, found 0.0"),
            ({"radius": 1.0, "iterations": 0}, "strategy.iterations must be at least 1, found 0"),
        ),
    ),
    "norm_clipping": Case(
        {"bound": 20.0},
        scales=False,
        refused=(
            ({"bound": -1.0}, "strategy.bound must be above 0, found -1.0"),
            ({"bound": 1.0, "noise": -0.5}, "strategy.noise must be at least 0, found -0.5"),
        ),
    ),
    "rlr": Case(
        {"threshold": 3},
        least=3,
        withstands=False,
        pointwise=True,
        refused=(({"threshold": -1}, "strategy.threshold must be at least 0, found -1"),),
    ),
    "foolsgold": Case(
        withstands=False,
        unanimous=False,
        refused=(({"confidence": 0.0}, "strategy.confidence must be above 0, found 0.0"),),
    ),
    "fltrust": Case(),
    "flame": Case(
        {"noise": 0.0, "angles": "updates"},
        least=3,
        refused=(({"noise": -1.0}, "strategy.noise must be at least 0, found -1.0"),),
    ),
    "deepsight": Case(
        {"samples": 50, "smallest_cluster": 2},
        least=3,
        scales=False,
        withstands=False,
        unanimous=False,
        refused=(
            ({"samples": 0}, "strategy.samples must be at least 1, found 0"),
            ({"draws": 0}, "strategy.draws must be at least 1, found 0"),
            ({"most_suspicious": 0.0}, r"strategy.most_suspicious must lie in \(0, 1\], found 0.0"),
            ({"smallest_cluster": 1}, "strategy.smallest_cluster must be at least 2, found 1"),
        ),
    ),
    "fedavgm": Case(
        withstands=False,
        refused=(
            ({"momentum": 1.0}, r"strategy.momentum must lie in \[0, 1\), found 1.0"),
            ({"learning_rate": 0.0}, "strategy.learning_rate must be above 0, found 0.0"),
        ),
    ),
    "fedadam": ADAPTIVE,
    "fedyogi": ADAPTIVE,
}
VARIANCES = slice(12, 16)  # norm.running_var
TOLERANCE = {torch.float32: 2e-5, torch.float64: 1e-10}

every = pytest.mark.parametrize("kind", CASES)
both = pytest.mark.parametrize("dtype", TOLERANCE)


def those(condition):
    return pytest.mark.parametrize("kind", [kind for kind, case in CASES.items() if condition(case)])


def rule_of(kind, **options):
    return plugins.build("strategies", {"kind": kind, **CASES[kind].options, **options}, "strategy")


@pytest.fixture
def decide(cohort_of, server_of, layout):
    """One step of a rule on rows, from its first state, with an honest trusted update."""

    def one(rule, updates, trusted=None, **cohort):
        server = server_of(layout.size, updates.dtype, honest(1, updates.dtype, seed=9)[0])
        if trusted is not None:
            server = replace(server, trusted=replace(server.trusted, row=trusted))
        state = rule.init(server.model)
        return rule.step(state, cohort_of(updates, **cohort), server)[1]

    return one


def honest(n, dtype=torch.float64, seed=0):
    """Rows that lie about a common direction, no two alike; lengths near 7."""
    generator = torch.Generator().manual_seed(seed)
    rows = torch.ones(n, 41, dtype=torch.float64)
    return (rows + 0.5 * torch.randn(n, 41, dtype=torch.float64, generator=generator)).to(dtype)


def test_every_registered_rule_is_in_the_table():
    assert set(CASES) == set(plugins.available("strategies"))


@every
@both
def test_the_update_has_the_rows_type_is_finite_and_has_a_weight_per_client(kind, dtype, decide):
    decision = decide(rule_of(kind), honest(11, dtype))
    assert (decision.update.dtype, decision.update.shape) == (dtype, (41,))
    assert bool(decision.update.isfinite().all())
    assert (decision.weights is None) == CASES[kind].pointwise
    if decision.weights is not None:
        assert decision.weights.shape == (11,)
        assert bool((decision.weights >= 0).all())


@every
def test_float32_gives_what_float64_gives(kind, decide):
    narrow = honest(11, torch.float32)
    rule = rule_of(kind)
    wide = decide(rule, narrow.double(), honest(1, torch.float32, seed=9)[0].double())
    torch.testing.assert_close(
        decide(rule, narrow).update.double(),
        wide.update,
        rtol=2e-5,
        atol=2e-5 * wide.update.abs().max().item(),
    )


@those(lambda case: case.linear and not case.pointwise)
@both
def test_the_update_is_the_sum_of_the_rows_times_their_weights(kind, dtype, decide):
    updates = honest(11, dtype)
    updates[3] *= 5  # so that clipping has something to do
    decision = decide(rule_of(kind), updates)
    wanted = (decision.weights[:, None] * updates.double()).sum(dim=0).to(dtype)
    trained = torch.ones(41, dtype=torch.bool)
    trained[VARIANCES] = False
    close = {"rtol": TOLERANCE[dtype], "atol": TOLERANCE[dtype]}
    torch.testing.assert_close(decision.update[trained], wanted[trained], **close)


@every
@both
def test_the_order_of_clients_does_not_matter_beyond_rounding(kind, dtype, decide):
    updates, order = honest(11, dtype), torch.randperm(11, generator=torch.Generator().manual_seed(5))
    examples = torch.arange(5, 16)
    straight = decide(rule_of(kind), updates, examples=examples.tolist())
    shuffled = decide(rule_of(kind), updates[order], examples=examples[order].tolist())
    close = {"rtol": TOLERANCE[dtype], "atol": TOLERANCE[dtype]}
    torch.testing.assert_close(shuffled.update, straight.update, **close)
    if straight.weights is not None:
        torch.testing.assert_close(shuffled.weights, straight.weights[order], **close)


@those(lambda case: case.moves)
@both
def test_the_update_moves_with_the_updates(kind, dtype, decide):
    updates, shift = honest(11, dtype), torch.linspace(-50, 50, 41, dtype=torch.float64).to(dtype)
    still, moved = decide(rule_of(kind), updates), decide(rule_of(kind), updates + shift)
    close = {"rtol": 5 * TOLERANCE[dtype], "atol": 5 * TOLERANCE[dtype]}
    torch.testing.assert_close(moved.update, still.update + shift, **close)
    if still.weights is not None:
        torch.testing.assert_close(moved.weights, still.weights, rtol=1e-3, atol=1e-5)


@those(lambda case: case.scales)
@both
@pytest.mark.parametrize("factor", [1e-4, 1e4])
def test_the_update_scales_with_the_updates(kind, dtype, factor, decide):
    options = {"smoothing": 1e-12} if kind == "geometric_median" else {}  # the one length it has
    updates, trusted = honest(11, dtype), honest(1, dtype, seed=9)[0]
    plain = decide(rule_of(kind, **options), updates, trusted)
    scaled = decide(rule_of(kind, **options), factor * updates, factor * trusted)
    torch.testing.assert_close(
        scaled.update, factor * plain.update, rtol=TOLERANCE[dtype], atol=factor * TOLERANCE[dtype]
    )


@those(lambda case: case.withstands)
@both
@pytest.mark.parametrize("far", ["alone", "together", "opposite"])
def test_two_far_clients_of_eleven_do_not_carry_the_update_away(kind, dtype, far, decide):
    updates = honest(11, dtype)
    good = updates[2:].double()
    push = torch.full((2, 41), -1e6, dtype=dtype)
    if far != "together":
        push[1] = honest(1, dtype, seed=4)[0] * (-1e6 if far == "alone" else 1e6)
    updates[:2] = push
    update = decide(rule_of(kind), updates).update.double()
    # radius and bound of the clipping rules are about three honest lengths; others stay among the honest
    reach = 2 / 11 * 20.0 if "clipping" in kind else 0.0
    assert (
        torch.dist(update, good.mean(dim=0)).item()
        <= reach + 1.5 * (good - good.mean(dim=0)).norm(dim=1).max()
    )


@those(lambda case: case.unanimous)
@both
def test_a_cohort_that_agrees_gets_what_it_agrees_on(kind, dtype, decide):
    row = honest(1, dtype)[0]
    decision = decide(rule_of(kind), row.expand(9, -1).clone(), row)
    torch.testing.assert_close(decision.update, row, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


@every
def test_nothing_given_is_changed_and_the_same_call_gives_the_same_bits(kind, cohort_of, server_of, layout):
    updates, trusted = honest(11), honest(1, seed=9)[0]
    cohort, rule = cohort_of(updates.clone()), rule_of(kind)
    first = rule.init(server_of(layout.size).model)
    state, _ = rule.step(first, cohort, server_of(layout.size, trusted=trusted.clone()))
    kept = {name: value.clone() for name, value in state.items()}
    globally = torch.get_rng_state()
    server = server_of(layout.size, trusted=trusted.clone())
    model = server.model.clone()
    one = rule.step(state, cohort, server)
    two = rule.step(state, cohort, server_of(layout.size, trusted=trusted.clone()))
    assert torch.equal(cohort.updates, updates)
    assert torch.equal(server.model, model)
    assert torch.equal(server.trusted.row, trusted)
    assert torch.equal(torch.get_rng_state(), globally)
    for name, value in kept.items():
        assert torch.equal(state[name], value), name
    assert torch.equal(one[1].update, two[1].update)
    assert {name: value.tolist() for name, value in one[0].items()} == {
        name: value.tolist() for name, value in two[0].items()
    }
    one[1].update.zero_()  # nor is the decision a view of what was given
    assert torch.equal(cohort.updates, updates)
    for name, value in one[0].items():
        assert torch.equal(value, two[0][name]), name


@every
def test_a_state_that_was_saved_and_loaded_goes_on_with_the_same_bits(
    kind, cohort_of, server_of, layout, tmp_path
):
    rule, trusted = rule_of(kind), honest(1, torch.float32, seed=9)[0]
    server = server_of(layout.size, torch.float32)
    straight = stored = rule.init(server.model)
    for number in range(1, 5):
        partitions = [number, *range(6, 16)]  # the cohort changes from round to round
        cohort = cohort_of(honest(11, torch.float32, seed=number), partitions=partitions, round=number)
        straight, wanted = rule.step(
            straight, cohort, server_of(layout.size, torch.float32, trusted, seed=number)
        )
        state = RunState(round=number, vector=server.model, integers={}, strategy=stored)
        save(tmp_path / "c", Checkpoint(state=state, seed=0, digest="", history=0))
        stored, found = rule.step(
            load(tmp_path / "c").state.strategy,
            cohort,
            server_of(layout.size, torch.float32, trusted, seed=number),
        )
        assert torch.equal(found.update, wanted.update)
        assert list(stored) == list(straight)
    assert all(torch.equal(stored[name], value) for name, value in straight.items())


@every
@both
def test_the_smallest_legal_cohort_is_served_and_one_less_is_told_what_to_change(kind, dtype, decide):
    least = CASES[kind].least
    assert bool(decide(rule_of(kind), honest(least, dtype)).update.isfinite().all())
    message = rf"^Round 1: {kind}.* needs at least {least} replies, got {least - 1}: .* or raise federation"
    inner = "fedavg" if kind in ("fedavgm", "fedadam", "fedyogi") else kind
    with pytest.raises(RoundError, match=message.replace(kind, inner)):
        decide(rule_of(kind), honest(least - 1, dtype))
    need = getattr(rule_of(kind), "smallest_cohort", None)  # by which a run is refused before its first round
    assert (1 if need is None else need.least) == least


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [(kind, *refused) for kind, case in CASES.items() for refused in case.refused],
)
def test_an_illegal_value_is_refused_with_its_key(kind, options, message):
    with pytest.raises(ConfigError, match=f"^{message}"):
        plugins.build("strategies", {"kind": kind, **options}, "strategy")


@pytest.mark.parametrize("kind", ["centred_clipping", "norm_clipping", "fedadam", "geometric_median"])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_values_that_are_no_numbers_are_refused(kind, value):
    key = {"centred_clipping": "radius", "norm_clipping": "bound", "fedadam": "learning_rate"}
    with pytest.raises(ConfigError, match=r"^strategy\.\w+ must be above 0, found (nan|inf)"):
        rule_of(kind, **{key.get(kind, "smoothing"): value})


@every
def test_extreme_values_of_float32_do_not_overflow(kind, decide):
    updates = honest(11, torch.float32)
    updates[0] *= 1e37
    decision = decide(rule_of(kind), updates)
    assert bool(decision.update.isfinite().all())
    if decision.weights is not None:
        assert bool(decision.weights.isfinite().all())


@every
@pytest.mark.parametrize("loud", [{}, {"norm_clipping": {"noise": 0.5}, "flame": {"noise": 0.5}}])
def test_variances_of_batch_norm_never_fall_below_zero(kind, loud, cohort_of, server_of, layout):
    """Clients shrink or raise their variances, while their other parameters disagree."""
    rule, variances = rule_of(kind, **loud.get(kind, {})), torch.ones(4)
    state = rule.init(server_of(layout.size, torch.float32).model)
    for number in range(12):
        updates = honest(11, torch.float32, seed=number) - 1
        shrink = torch.linspace(0.1, 0.9, 11)[:, None] if number % 3 else torch.full((11, 1), 0.02)
        updates[:, VARIANCES] = -shrink * variances
        if number % 3 == 0:
            updates[::2, VARIANCES] += 1.9 * variances
        trusted = honest(1, torch.float32, seed=99)[0]
        server = server_of(layout.size, torch.float32, trusted, seed=number)
        state, decision = rule.step(state, cohort_of(updates, round=number + 1), server)
        variances = variances + decision.update[VARIANCES]
        assert bool((variances > 0).all())


@every
def test_a_cohort_that_sends_nothing_new_leaves_the_model_where_it_is(kind, decide):
    decision = decide(rule_of(kind), torch.zeros(11, 41))
    assert not bool(decision.update.any())


@every
@both
def test_batch_norm_statistics_decide_nothing_about_clients(kind, dtype, decide):
    """However far they move, the clients' weights and the change of the parameters stay as they are."""
    rule, calm, wild = rule_of(kind), honest(11, dtype), honest(11, dtype)
    calm[:, VARIANCES], trusted = 0.0, honest(1, dtype, seed=99)[0]
    wild[:, VARIANCES] = torch.rand(11, 4, generator=torch.Generator().manual_seed(3)).to(dtype) * 500
    one, other = decide(rule, calm, trusted=trusted), decide(rule, wild, trusted=trusted)
    trained = torch.ones(41, dtype=torch.bool)
    trained[VARIANCES] = False
    torch.testing.assert_close(
        one.update[trained], other.update[trained], rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype]
    )
    if one.weights is not None:
        torch.testing.assert_close(one.weights, other.weights, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


@those(lambda case: case.linear and not case.pointwise)
def test_batch_norm_statistics_follow_the_clients_weights(kind, decide):
    """Or are cut, as under fltrust, but never beyond what the clients sent."""
    updates = honest(11)
    decision = decide(rule_of(kind), updates)
    assert bool((decision.update[VARIANCES] <= updates[:, VARIANCES].max(dim=0).values + 1e-9).all())
    if kind != "fltrust":
        wanted = (decision.weights[:, None] * updates[:, VARIANCES]).sum(dim=0)
        torch.testing.assert_close(decision.update[VARIANCES], wanted, rtol=1e-10, atol=0)
