"""Stages A, B and C of CTO-VPA as functions: against loops, finite differences and their own limits."""

import math
from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch

from attacks.cto_vpa import stability
from attacks.cto_vpa.alignment import distance, keep_near, median_norm, others, within
from attacks.cto_vpa.attack import CtoVpa
from attacks.cto_vpa.coupling import Aim, TriggerLoss, cosine_along
from attacks.cto_vpa.search import aim_of
from attacks.trigger_search import Examples, SignSteps, due, improved, searcher
from attacks.triggers import Trigger, poison_batch
from clients.models.cnn import Cnn
from clients.models.resnet import ResNet18
from clients.supervised import Supervised
from fedsim.contracts import Batch, ClientData, Context, DataSpec
from fedsim.data.examples import Rows
from fedsim.errors import RoundError
from fedsim.params import Layout
from fedsim.training.functional import FunctionalModel, model_tensors, parameter_names
from fedsim.training.optimizers import Adam

SPEC = DataSpec("rows", (3, 8, 8), 5)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def seeded(table, dtype=torch.float32):
    with torch.random.fork_rng():
        torch.manual_seed(3)
        return table.build(SPEC).to(dtype)


@pytest.fixture
def resnet():
    return seeded(ResNet18(width=4, norm="batch"))


@pytest.fixture
def cnn():
    return seeded(Cnn(channels=(4, 6), hidden=8), torch.float64)


def walk(model, steps, seed=0):
    """Models one round apart, as flat vectors."""
    layout = Layout.of(model_tensors(model))
    vector, chance, found = layout.flatten(model_tensors(model)), generator(seed), []
    for _ in range(steps):
        vector = vector + 0.1 * torch.randn(vector.shape, generator=chance, dtype=vector.dtype)
        found.append(vector)
    return layout, found


def score_by_definition(layout, models, name):
    """s_j of one weight, with loops and without the code under test."""
    histories = [
        layout.unflatten(model, {n: torch.zeros(()) for n, *_ in layout.integers})[name] for model in models
    ]
    scores = []
    for j in range(histories[0].shape[0]):
        a = [sum(abs(float(w)) for w in one[j].flatten()) / one[j].numel() for one in histories]
        d = [after - before for before, after in pairwise(a)]
        mean = sum(d) / len(d)
        variance = sum((x - mean) ** 2 for x in d) / len(d)
        scores.append(abs(a[-1]) * variance / (max(a) - min(a) + 1e-10))
    return scores


@pytest.mark.parametrize("rounds", [3, 10])
def test_the_score_follows_its_definition(cnn, rounds):
    layout, models = walk(cnn, rounds)
    parts = stability.layers(layout, parameter_names(cnn))
    assert [one.name for one in parts] == ["conv1.weight", "conv2.weight", "dense.weight", "head.weight"]
    moments = {}
    for model in models:
        moments = stability.watched(moments, stability.magnitudes(model, parts))
    expected = [s for one in parts for s in score_by_definition(layout, models, one.name)]
    found = stability.score(moments)
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64), rtol=1e-9, atol=1e-15)


def test_the_moments_do_not_grow(cnn):
    layout, models = walk(cnn, 6)
    parts = stability.layers(layout, parameter_names(cnn))
    sizes, moments = [], {}
    for model in models:
        moments = stability.watched(moments, stability.magnitudes(model, parts))
        sizes.append(sum(value.numel() for value in moments.values()))
    assert len(set(sizes)) == 1
    assert sizes[0] == 1 + 5 * sum(one.units for one in parts)


def test_a_score_needs_three_models(cnn):
    layout, models = walk(cnn, 2)
    parts = stability.layers(layout, parameter_names(cnn))
    moments = {}
    for model in models:
        moments = stability.watched(moments, stability.magnitudes(model, parts))
    with pytest.raises(RoundError, match="needs at least 3 models, saw 2"):
        stability.score(moments)
    with pytest.raises(RoundError, match="needs at least 3 models, saw 0"):
        stability.score({})


def test_a_unit_that_never_moves_scores_zero():
    moments = {}
    for value in (1.0, 1.0, 1.0):
        moments = stability.watched(moments, torch.tensor([value, 0.0], dtype=torch.float64))
    assert stability.score(moments).tolist() == [0.0, 0.0]


@pytest.mark.parametrize(("rho", "counts"), [(0.3, [1, 2, 2, 2]), (0.01, [1, 1, 1, 1]), (1.0, [4, 6, 8, 5])])
def test_every_layer_gives_its_share(cnn, rho, counts):
    layout = Layout.of(model_tensors(cnn))
    parts = stability.layers(layout, parameter_names(cnn))
    ranking = torch.rand(sum(one.units for one in parts), generator=generator(), dtype=torch.float64)
    chosen = stability.top_share(ranking, parts, rho)
    at = 0
    for one, count in zip(parts, counts, strict=True):
        own, scores = chosen[at : at + one.units], ranking[at : at + one.units]
        assert int(own.sum()) == count
        assert own.all() or scores[own].min() > scores[~own].max()
        at += one.units


def test_a_row_can_be_forced_into_the_share(cnn):
    parts = stability.layers(Layout.of(model_tensors(cnn)), parameter_names(cnn))
    ranking = -torch.arange(sum(one.units for one in parts), dtype=torch.float64)
    plain = stability.top_share(ranking, parts, 0.3)
    forced = stability.top_share(stability.first(ranking, parts, 4), parts, 0.3)
    assert plain[-5:].tolist() == [True, True, False, False, False]
    assert forced[-5:].tolist() == [True, False, False, False, True]
    assert torch.equal(plain[:-5], forced[:-5])


def test_a_bias_belongs_to_its_unit_and_batch_norm_to_none(cnn, resnet):
    layout = Layout.of(model_tensors(cnn))
    parts = stability.layers(layout, parameter_names(cnn))
    chosen = torch.zeros(sum(one.units for one in parts), dtype=torch.bool)
    chosen[5] = True  # the second filter of conv2
    mask = layout.unflatten(stability.coordinates(chosen, parts, layout.size), {})
    assert {name for name, one in mask.items() if one.any()} == {"conv2.weight", "conv2.bias"}
    assert mask["conv2.bias"].tolist() == [0, 1, 0, 0, 0, 0]
    assert bool(mask["conv2.weight"][1].all())
    assert int(mask["conv2.weight"].sum()) == 4 * 9
    names = [one.name for one in stability.layers(Layout.of(model_tensors(resnet)), parameter_names(resnet))]
    assert not [name for name in names if "norm" in name]
    assert "head.weight" in names


def test_the_direction_is_of_length_one_on_v():
    mask, drift = torch.tensor([True, False, True]), torch.tensor([3.0, 7.0, -4.0])
    torch.testing.assert_close(stability.unit(drift, mask), torch.tensor([0.6, 0.0, -0.8]))
    with pytest.raises(RoundError, match=r'did not move on V.*use "ones"'):
        stability.unit(torch.zeros(3), mask)


def coupled(model, coupling, feature, drift=False):
    """A loss whose V is a random half of the units."""
    layout = Layout.of(model_tensors(model))
    parts = stability.layers(layout, parameter_names(model))
    ranking = torch.rand(sum(one.units for one in parts), generator=generator(5), dtype=torch.float64)
    flat = stability.coordinates(stability.top_share(ranking, parts, 0.5), parts, layout.size)
    masks = {name: one.bool() for name, one in layout.unflatten(flat, {}).items()}
    moved = torch.randn(layout.size, generator=generator(6), dtype=torch.float64) if drift else None
    aim = aim_of(masks, moved, layout, torch.device("cpu"))
    centre = torch.randn(8, generator=generator(7), dtype=torch.float64)
    loss = TriggerLoss(model.eval(), model_tensors(model), 1, coupling, aim, feature, centre)
    return loss, masks


def images(count=6, dtype=torch.float64):
    chance = generator(8)
    x = torch.rand((count, 3, 8, 8), generator=chance, dtype=dtype)
    return Batch(x, torch.tensor([0, 2, 3, 4, 0, 2])[:count])


def trigger(pattern=None, dtype=torch.float64):
    mask = torch.zeros(3, 8, 8, dtype=torch.bool)
    mask[:, :2, :2] = True
    inner = torch.rand((3, 8, 8), generator=generator(9), dtype=dtype) if pattern is None else pattern
    black = torch.full((3, 1, 1), -1.0, dtype=torch.float64)
    return Trigger(mask, inner, black, -black)


@pytest.mark.parametrize(("coupling", "feature"), [(0.0, 0.0), (3.0, 0.0), (3.0, 0.5)])
@pytest.mark.parametrize("drift", [False, True])
def test_the_losses_gradient_agrees_with_finite_differences(cnn, coupling, feature, drift):
    loss, _ = coupled(cnn, coupling, feature, drift)
    batch, start = images(), trigger()

    def at(pattern):
        return loss(poison_batch(batch, start.with_pattern(pattern), 1))

    leaf = start.pattern.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(at(leaf), leaf)
    step = 1e-6
    for place in start.mask.nonzero().tolist():
        moved = torch.zeros_like(start.pattern)
        moved[tuple(place)] = step
        measured = float((at(start.pattern + moved) - at(start.pattern - moved)).detach()) / (2 * step)
        assert math.isclose(float(gradient[tuple(place)]), measured, rel_tol=1e-5, abs_tol=1e-8)
    assert not gradient[~start.mask].any()


def test_the_coupling_reaches_the_trigger(cnn):
    """Its gradient is no multiple of the cross-entropy's: the term is not a constant, nor a rescaling."""
    batch, start, found = images(), trigger(), []
    for coupling in (0.0, 3.0):
        loss, _ = coupled(cnn, coupling, 0.0)
        leaf = start.pattern.clone().requires_grad_()
        found.append(torch.autograd.grad(loss(poison_batch(batch, start.with_pattern(leaf), 1)), leaf)[0])
    plain, both = (one[start.mask] for one in found)
    assert torch.nn.functional.cosine_similarity(plain, both, dim=0) < 0.999


def test_the_cosine_is_that_of_the_flat_gradient_on_v(cnn):
    loss, masks = coupled(cnn, 1.0, 0.0)
    batch, names = poison_batch(images(), trigger(), 1), sorted(masks)
    tensors = {name: value.requires_grad_() for name, value in model_tensors(cnn).items()}
    logits, _ = FunctionalModel(cnn)(tensors, batch)
    plain = torch.nn.functional.cross_entropy(logits, batch.y)
    gradients = dict(
        zip(names, torch.autograd.grad(plain, [tensors[n] for n in names], retain_graph=True), strict=True)
    )
    g = torch.cat([-(gradients[name] * masks[name]).flatten() for name in names])
    u = torch.cat([masks[name].double().flatten() for name in names])
    expected = float((g @ u / (g.norm() * u.norm())).detach())
    assert math.isclose(float(cosine_along(plain, tensors, loss.aim).detach()), expected, rel_tol=1e-9)
    assert math.isclose(float(loss(batch).detach()), float(plain.detach()) - expected, rel_tol=1e-9)


def test_where_cross_entropy_is_flat_the_cosine_and_its_gradient_are_zero():
    weight = torch.zeros(2, requires_grad=True)
    x = torch.ones(2, requires_grad=True)
    aim = Aim({"w": torch.tensor([1.0, 0.0])}, {"w": torch.tensor([True, False])})
    loss = (weight * x * 0.0).sum()
    cosine = cosine_along(loss, {"w": weight}, aim)
    assert float(cosine.detach()) == 0.0
    (gradient,) = torch.autograd.grad(cosine + 0.0 * x.sum(), x)
    assert gradient.tolist() == [0.0, 0.0]


@pytest.mark.parametrize("search", ["adam", "sign"])
def test_every_pattern_that_is_used_is_in_range(search):
    start, seen = trigger(torch.full((3, 8, 8), 0.9, dtype=torch.float64)), []

    def loss(candidate):
        seen.append(candidate.pattern.detach().clone())
        return -candidate.pattern[0].sum() + candidate.pattern[1:].sum()

    end = improved(start, loss, 30, searcher(search, 0.2))
    assert len(seen) == 30
    assert all(one.min() >= 0 and one.max() <= 1 for one in [*seen, end.pattern])
    assert (
        end.pattern[0][start.mask[0]].tolist() == [1.0] * 4
    )  # it left the range's edge, and came back to it
    assert end.pattern[1][start.mask[1]].tolist() == [0.0] * 4
    assert torch.equal(end.pattern[~start.mask], start.pattern[~start.mask])
    assert torch.equal(start.pattern, torch.full((3, 8, 8), 0.9, dtype=torch.float64))


def test_a_value_at_the_edge_can_come_back():
    start = trigger(torch.ones(3, 8, 8, dtype=torch.float64))
    end = improved(start, lambda one: one.stamp(images().x).sum(), 3, SignSteps(learning_rate=0.1))
    torch.testing.assert_close(end.pattern[start.mask], torch.full((12,), 0.7, dtype=torch.float64))


def test_no_steps_leave_the_trigger_as_it_is():
    start = trigger()
    assert (
        improved(start, lambda _: pytest.fail("asked"), 0, Adam(learning_rate=0.1)).pattern is start.pattern
    )


def test_a_loss_that_is_not_finite_is_named():
    scales = iter([1.0, float("nan")])
    with pytest.raises(RoundError, match="not finite in step 2"):
        improved(trigger(), lambda one: one.pattern.sum() * next(scales), 5, searcher("sign", 0.1))


def test_a_search_is_due_at_the_opening_and_then_as_asked():
    assert [since for since in range(-3, 7) if due(since, 3)] == [0, 3, 6]
    assert [since for since in range(-3, 7) if due(since, 0)] == [0]


def test_examples_are_pooled_in_order_and_drawn_without_repetition():
    def client(*labels):
        rows = Rows(torch.rand(len(labels), 3, 8, 8, generator=generator()), torch.tensor(labels))
        return ClientData(rows, rows.part(0, 0), rows.part(0, 0), SPEC)

    pool = Examples.of([client(0, 1), client(2, 1, 4)], torch.device("cpu"), torch.float64)
    assert pool.y.tolist() == [0, 1, 2, 1, 4]
    assert pool.x.dtype == torch.float64
    assert sorted(pool.draw(5, generator()).y.tolist()) == [0, 1, 1, 2, 4]
    assert len(pool.draw(9, generator()).y) == 9
    assert pool.chosen(pool.y == 1).y.tolist() == [1, 1]
    assert pool.chosen(pool.y == 3).y.tolist() == pool.y.tolist()  # there is none: all


def test_the_distance_has_no_gradient_at_the_received_model():
    anchor = {"a": torch.ones(3), "b": torch.zeros(2, 2)}
    leaves = {name: value.clone().requires_grad_() for name, value in anchor.items()}
    away = distance(leaves, anchor, ["a", "b"])
    gradients = torch.autograd.grad(away, list(leaves.values()))
    assert float(away.detach()) == 0.0
    assert all(torch.equal(one, torch.zeros_like(one)) for one in gradients)
    moved = {
        "a": anchor["a"] + torch.tensor([3.0, 0, 0]),
        "b": anchor["b"] + torch.tensor([[0, 4.0], [0, 0]]),
    }
    assert float(distance(moved, anchor, ["a", "b"])) == 5.0


@pytest.mark.parametrize("buffers", [True, False])
def test_malicious_losses_are_mixed_with_the_distance(buffers, resnet):
    program = Supervised(model=_Built(resnet)).build_program(SPEC, 1)
    (plain,), (mixed,) = program.phases, keep_near(program, 0.3, buffers=buffers).phases
    anchor = model_tensors(resnet)
    tensors = {name: value + 0.01 if value.is_floating_point() else value for name, value in anchor.items()}
    context, batch = Context(anchor, {}, {}, 1), images(dtype=torch.float32)
    ce, changed = plain.losses(tensors, batch, context)
    found, kept = mixed.losses(tensors, batch, context)
    trained = sum(tensors[name].numel() for name in parameter_names(resnet))
    torch.testing.assert_close(found, 0.7 * ce + 0.3 * 0.01 * math.sqrt(trained), rtol=1e-4, atol=0)
    assert set(kept) == (set(changed) if buffers else set())
    assert changed


def test_without_a_share_the_losses_are_the_honest_ones(resnet):
    program = Supervised(model=_Built(resnet)).build_program(SPEC, 1)
    context, batch = Context(model_tensors(resnet), {}, {}, 1), images(dtype=torch.float32)
    found, kept = keep_near(program, 0.0, buffers=True).phases[0].losses(context.anchor, batch, context)
    ce, changed = program.phases[0].losses(context.anchor, batch, context)
    assert torch.equal(found, ce)
    assert set(kept) == set(changed)


class _Built:
    """A model that is there already, as a builder."""

    def __init__(self, model):
        self.model = model

    def build(self, spec):
        return self.model


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rows_are_cut_and_filled_to_the_radius(dtype):
    rows = torch.tensor([[3.0, 4.0], [0.3, 0.4], [0.0, 0.0]], dtype=dtype)
    cut, filled = within(rows, 1.0, fill=False), within(rows, 1.0, fill=True)
    torch.testing.assert_close(cut, torch.tensor([[0.6, 0.8], [0.3, 0.4], [0, 0]], dtype=dtype))
    torch.testing.assert_close(filled, torch.tensor([[0.6, 0.8], [0.6, 0.8], [0, 0]], dtype=dtype))
    assert cut.dtype == filled.dtype == dtype
    assert rows[0].tolist() == [3.0, 4.0]


def test_the_median_is_over_the_others():
    updates = torch.tensor([[1.0, 0], [9.0, 0], [2.0, 0], [7.0, 0], [3.0, 0]])
    rest = others(updates, (1, 3))
    assert rest[:, 0].tolist() == [1.0, 2.0, 3.0]
    assert median_norm(rest) == 2.0
    assert median_norm(updates[:4]) == 2.0  # the lower of 2 and 7
    assert others(updates, range(5)).shape == (0, 2)


def test_batch_norm_s_statistics_count_in_no_norm():
    """Benign parameters move by 1 and statistics by 10; a filled update's parameters move by 1 too."""
    layout = Layout.of({"a.weight": torch.zeros(2), "a.running_var": torch.zeros(1)}, {"a.running_var"})
    benign = torch.tensor([[0.6, 0.8, 10.0], [1.0, 0.0, -10.0], [0.0, 1.0, 10.0]])
    own = torch.tensor([[0.0, 0.25, 0.0]])
    view = SimpleNamespace(own=own, updates=torch.cat([benign, own]), places=(3,), layout=layout)
    found = CtoVpa(radius="median", fill=True).craft({}, view, generator())
    torch.testing.assert_close(found, torch.tensor([[0.0, 1.0, 0.0]]))
