"""Removal attacks: what they do to a model, and that a mark outlives the weak ones."""

import pytest
import torch
from torch.nn import functional

from attacks.removal.answers import labels_only, noisy, rounded
from attacks.removal.distillation import distil, extract
from attacks.removal.fine_tuning import fine_tune
from attacks.removal.hostile_majority import federated_fine_tune, parted
from attacks.removal.pruning import prune_units, prune_weights
from attacks.removal.quantisation import quantise
from fedsim.errors import ConfigError
from fedsim.training.functional import model_tensors
from fedsim.training.optimizers import Adam, Sgd
from fedsim.watermark.embedding import accuracy, train
from fedsim.watermark.forward import GraphModel
from fedsim.watermark.stored_model import build_model, tensors_suspect
from fedsim.watermark.subgraphs import draw_sets, induced
from fedsim.watermark.suspect import Suspect
from fedsim.watermark.verification import verify


@pytest.fixture(scope="module")
def stolen(world):
    """A marked model and its key."""
    key = world.key_of(world.graph)
    return train(world.model, world.graph, world.split, world.options(), keys=[key]), key


def log_p(world, tensors, key):
    verdict = verify(key, world.graph, tensors_suspect("suspect", world.model, tensors), null_sets=0)
    return torch.tensor(verdict.match.p).log10().item()


def accuracy_on_test(world, tensors):
    whole = GraphModel(world.model, world.graph.x, world.graph.edge_index)
    return accuracy(whole, tensors, world.graph.y, world.split.test)


def test_the_smallest_weights_go_first():
    tensors = {
        "a.w": torch.tensor([[3.0, -1.0], [0.5, 2.0]]),
        "b.w": torch.tensor([[-0.1, 4.0]]),
        "b.b": torch.ones(2),
    }
    found = prune_weights(tensors, 0.5)
    assert found["a.w"].tolist() == [[3, 0], [0, 2]]
    assert found["b.w"].tolist() == [[0, 4]]
    assert found["b.b"].tolist() == [1, 1]
    assert tensors["a.w"][0, 1] == -1
    for share, left in ((0.0, 6), (1.0, 0)):
        kept = prune_weights(tensors, share)
        assert sum(int((kept[name] != 0).sum()) for name in ("a.w", "b.w")) == left


def test_units_go_with_all_their_rows_and_their_bias():
    tensors = {
        "convolutions.0.lin_l.weight": torch.tensor([[1.0, 1], [3, 3], [0, 0]]),
        "convolutions.0.lin_r.weight": torch.tensor([[0.0, 1], [0, 0], [9, 9]]),
        "convolutions.0.lin_l.bias": torch.tensor([0.1, 0.2, 0.3]),
        "head.weight": torch.ones(3, 3),
    }
    found = prune_units(tensors, 1 / 3)
    assert found["convolutions.0.lin_l.weight"].tolist() == [[0, 0], [3, 3], [0, 0]]
    assert found["convolutions.0.lin_r.weight"].tolist() == [[0, 0], [0, 0], [9, 9]]
    assert found["convolutions.0.lin_l.bias"][0] == 0
    assert found["head.weight"].tolist() == tensors["head.weight"].tolist()
    assert all(torch.equal(prune_units(tensors, 0)[name], tensors[name]) for name in tensors)


def test_levels_of_quantised_weights():
    tensors = {"w": torch.linspace(-1, 0.7, 50), "zero": torch.zeros(3)}
    found = quantise(tensors, 3)
    assert len(found["w"].unique()) <= 7
    torch.testing.assert_close(found["w"], tensors["w"], rtol=0, atol=1 / 6 + 1e-6)
    assert found["zero"].tolist() == [0, 0, 0]
    torch.testing.assert_close(quantise(tensors, 16)["w"], tensors["w"], rtol=0, atol=1e-4)


def test_fine_tuning_is_plain_descent(world):
    start = model_tensors(world.model)
    table = dict(world.table, dropout=0.0)
    model = build_model(table, 120, 4)
    found = fine_tune(
        model, start, world.graph, world.split.train, optimizer=Sgd(learning_rate=0.5), epochs=2,
        rng=world.generator(0),
    )  # fmt: skip
    leaves = {name: tensor.clone().requires_grad_() for name, tensor in start.items()}
    whole = GraphModel(model, world.graph.x, world.graph.edge_index)
    for _ in range(2):
        loss = functional.cross_entropy(
            whole.logits(leaves)[world.split.train], world.graph.y[world.split.train]
        )
        slopes = torch.autograd.grad(loss, list(leaves.values()))
        leaves = {
            name: (leaf - 0.5 * slope).detach().requires_grad_()
            for (name, leaf), slope in zip(leaves.items(), slopes, strict=True)
        }
    for name, leaf in leaves.items():
        torch.testing.assert_close(found[name], leaf.detach(), rtol=1e-5, atol=1e-6)


def test_a_mark_outlives_weak_attacks_and_not_distillation(world, stolen):
    tensors, key = stolen
    before = log_p(world, tensors, key)
    assert before < -12
    train_nodes = world.split.train
    tuned = fine_tune(
        world.model, tensors, world.graph, train_nodes, optimizer=Adam(learning_rate=1e-3), epochs=8,
        rng=world.generator(1),
    )  # fmt: skip
    for survivor in (quantise(tensors, 8), prune_weights(tensors, 0.3), tuned):
        assert log_p(world, survivor, key) < -8
    assert log_p(world, prune_weights(tensors, 1.0), key) > -3
    student = build_model(world.table, 120, 4, seed=9)
    copy = distil(
        world.model, tensors, world.graph, train_nodes, optimizer=Adam(learning_rate=0.01), epochs=80,
        rng=world.generator(2), student=student,
    )  # fmt: skip
    assert accuracy_on_test(world, copy) > 0.75
    assert log_p(world, copy, key) > before / 2


@pytest.mark.parametrize("hard", [False, True])
def test_extraction_sees_nothing_but_answers(world, stolen, hard):
    tensors, _ = stolen
    asked = []

    def query(x, edge_index):
        asked.append(len(x))
        return tensors_suspect("api", world.model, tensors).query(x, edge_index)

    alone = induced(
        world.graph.x, world.graph.edge_index, draw_sets(world.split.test, 5, 12, world.generator(0))
    )
    student = build_model(world.table, 120, 4, seed=9)
    copy = extract(
        query, student, world.graph, world.split.test, optimizer=Adam(learning_rate=0.01), epochs=60,
        rng=world.generator(0), alone=alone, hard=hard,
    )  # fmt: skip
    assert asked == [600, 12, 12, 12, 12, 12]
    assert accuracy_on_test(world, copy) > 0.7


def test_a_hostile_majority_fine_tunes_together(world, stolen):
    tensors, key = stolen
    parts = parted(world.graph, world.split.train, 4, world.generator(0))
    assert sum(len(part.nodes) for part in parts) == len(world.split.train)
    assert sum(len(part.graph.x) for part in parts) == 600
    found = federated_fine_tune(
        world.model, tensors, parts, optimizer=Sgd(learning_rate=0.05), rounds=2, epochs=1,
        rng=world.generator(0),
    )  # fmt: skip
    assert log_p(world, found, key) > log_p(world, tensors, key) - 1
    still = federated_fine_tune(
        world.model, tensors, parts, optimizer=Sgd(learning_rate=0.05), rounds=0, epochs=1,
        rng=world.generator(0),
    )  # fmt: skip
    assert all(torch.equal(still[name], tensors[name]) for name in tensors)


def test_one_client_with_the_whole_graph_is_fine_tuning(world):
    start = model_tensors(world.model)
    (part,) = parted(world.graph, world.split.train, 1, world.generator(0))
    assert torch.equal(part.graph.edge_index, world.graph.edge_index)
    options = {"optimizer": Sgd(learning_rate=0.5), "epochs": 3}
    together = federated_fine_tune(world.model, start, [part], rounds=1, rng=world.generator(3), **options)
    alone = fine_tune(world.model, start, world.graph, world.split.train, rng=world.generator(3), **options)
    for name in start:
        torch.testing.assert_close(together[name], alone[name], rtol=0, atol=0)


def test_answers_are_changed_and_the_model_is_not(world, stolen):
    tensors, key = stolen
    honest = tensors_suspect("api", world.model, tensors).query
    x, edges = world.graph.x[:9], torch.zeros(2, 0, dtype=torch.int64)
    assert ((10 * rounded(honest, 1)(x, edges)) % 1).abs().max() < 1e-9
    torch.testing.assert_close(noisy(honest, 0.0, world.generator(0))(x, edges), honest(x, edges))
    shaken = noisy(honest, 0.5, world.generator(0))(x, edges)
    torch.testing.assert_close(shaken.sum(dim=1), torch.ones(9, dtype=torch.float64))
    assert labels_only(honest)(x, edges).sum(dim=1).tolist() == [1.0] * 9
    verdict = verify(key, world.graph, Suspect("api", rounded(honest, 1)), null_sets=0)
    assert verdict.match.p < 1e-4
    with pytest.raises(ConfigError, match="hard labels"):
        verify(key, world.graph, Suspect("api", labels_only(honest)), null_sets=0)


@pytest.mark.parametrize(
    ("attempt", "message"),
    [
        (lambda: prune_weights({}, 1.1), "share must be between 0 and 1, found 1.1"),
        (lambda: prune_units({}, -0.1), "share must be between 0 and 1, found -0.1"),
        (lambda: quantise({}, 1), "bits must be at least 2, found 1"),
        (lambda: noisy(None, -1.0, None), "deviation must be at least 0, found -1.0"),
        (
            lambda: federated_fine_tune(None, {}, [], optimizer=None, rounds=1, epochs=1, rng=None),
            "parts must be clients with training nodes",
        ),
    ],
)
def test_values_out_of_range_are_refused(attempt, message):
    with pytest.raises(ConfigError, match=message):
        attempt()
