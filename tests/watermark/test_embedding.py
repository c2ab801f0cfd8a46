"""Marks in trained models: they are there, they cost little, and several fit in one model."""

import copy
import dataclasses

import pytest
import torch

from fedsim.contracts import Batch
from fedsim.errors import ConfigError
from fedsim.training.functional import FunctionalModel, model_tensors
from fedsim.watermark.descent import descend
from fedsim.watermark.embedding import Embedding, Mark, accuracy, train
from fedsim.watermark.forward import GraphModel
from fedsim.watermark.stored_model import tensors_suspect
from fedsim.watermark.verification import verify


def judged(world, tensors, key, **options):
    suspect = tensors_suspect("model", world.model, tensors)
    return verify(key, world.graph, suspect, **({"null_sets": 0} | options))


@pytest.fixture(scope="module")
def trained(world):
    """A marked model, its key, and the unmarked control of the same seed."""
    key = world.key_of(world.graph)
    marked = train(world.model, world.graph, world.split, world.options(), keys=[key])
    return key, marked, train(world.model, world.graph, world.split, world.options())


def test_a_marked_model_is_convicted_and_its_control_is_not(world, trained):
    key, marked, control = trained
    guilty, innocent = judged(world, marked, key, null_sets=20), judged(world, control, key)
    assert guilty.marked
    assert guilty.match.p < 1e-12
    assert guilty.index.z > 3
    assert guilty.index.rank_p == pytest.approx(1 / 1001)
    assert not innocent.marked
    assert innocent.match.p > 1e-4
    told = guilty.as_json()
    assert told["verdict"] == "marked"
    assert told["threshold"] == pytest.approx(1e-8)
    assert told["matching_index"]["decides"] is False


def test_the_task_survives(world, trained):
    _, marked, control = trained
    whole = GraphModel(world.model, world.graph.x, world.graph.edge_index)
    with_mark, without_mark = (
        accuracy(whole, one, world.graph.y, world.split.test) for one in (marked, control)
    )
    assert without_mark > 0.8
    assert with_mark > without_mark - 0.08


def test_several_owners_fit_in_one_model(world):
    keys = [world.key_of(world.graph, seed=seed, owner=f"owner {seed}") for seed in (3, 4, 5)]
    tensors = train(world.model, world.graph, world.split, world.options(epochs=150), keys=keys)
    assert all(judged(world, tensors, key).marked for key in keys)
    assert not judged(world, tensors, world.key_of(world.graph, seed=6)).marked


@pytest.mark.parametrize("changes", [{"combine": "sum"}, {"classify_marked": True}, {"cure": 15}])
def test_every_way_to_embed_convicts(world, changes):
    key = world.key_of(world.graph)
    tensors = train(world.model, world.graph, world.split, world.options(**changes), keys=[key])
    assert judged(world, tensors, key).marked


def test_a_projection_in_training_is_the_explanation_of_the_verdict(world, trained):
    key, marked, _ = trained
    mark = Mark.of(world.model, key, world.graph)
    with torch.no_grad():
        e = mark.projection.explain(mark.probabilities(marked))
    verdict = judged(world, marked, key)
    assert int((e.sign() == key.signs).sum()) == verdict.match.matches


def test_the_stacked_path_is_the_plain_model(world):
    x, edges = world.graph.x.double(), world.graph.edge_index
    model = copy.deepcopy(world.model).double()
    tensors = model_tensors(model)
    found = GraphModel(model, x, edges).logits(tensors)
    plain, _ = FunctionalModel(model)(tensors, Batch(x, world.graph.y, edge_index=edges))
    torch.testing.assert_close(found, plain, rtol=1e-12, atol=1e-12)


def test_training_is_a_function_of_its_seed(world):
    options = world.options(epochs=3)
    one, same, other = (
        train(world.model, world.graph, world.split, options, seed=seed) for seed in (1, 1, 2)
    )
    assert all(torch.equal(one[name], same[name]) for name in one)
    assert any(not torch.equal(one[name], other[name]) for name in one)
    untouched = model_tensors(world.model)
    again = train(world.model, world.graph, world.split, options, seed=1)
    assert all(torch.equal(again[name], one[name]) for name in one)
    assert all(torch.equal(untouched[name], value) for name, value in model_tensors(world.model).items())


def test_descent_follows_torch(world):
    start = {"a": torch.tensor([1.0, -2.0], dtype=torch.float64), "b": torch.tensor(3.0, dtype=torch.float64)}

    def losses(tensors, step):
        return (tensors["a"].square().sum() + (tensors["b"] - step) ** 2).reshape(1)

    optimizer = dataclasses.replace(world.options().optimizer, learning_rate=0.1)
    found = descend(start, losses, optimizer, 7)
    expected = {name: value.clone().requires_grad_() for name, value in start.items()}
    adam = torch.optim.Adam(expected.values(), lr=0.1)
    for step in range(7):
        adam.zero_grad()
        losses(expected, step).sum().backward()
        adam.step()
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value.detach(), rtol=1e-12, atol=1e-12)
    assert start["a"].tolist() == [1.0, -2.0]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"epochs": 0}, "epochs must be at least 1, found 0"),
        ({"strength": 0.0}, "strength must be above 0 and finite, found 0.0"),
        ({"margin": -0.1}, "margin must be at least 0 and finite, found -0.1"),
        ({"margin": float("nan")}, "margin must be at least 0 and finite, found nan"),
        ({"strength": float("inf")}, "strength must be above 0 and finite, found inf"),
        ({"cure": -1}, "cure must be at least 0, found -1"),
    ],
)
def test_values_out_of_range_are_refused(changes, message):
    with pytest.raises(ConfigError, match=message):
        Embedding(**changes)


def test_too_few_nodes_for_the_cure_are_told(world):
    key = world.key_of(world.graph)
    with pytest.raises(ConfigError, match="100 sets of 12 nodes need 1200 nodes, found 312"):
        train(world.model, world.graph, world.split, world.options(cure=100), keys=[key])
