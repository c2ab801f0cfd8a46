"""Changed programs: honest noise stays, projections are exact, bounds hold."""

import pytest
import torch

from attacks.programs import (
    change_batches,
    clip_rows,
    keep_update_in,
    keep_update_within,
    then_project,
    train_longer,
    transform_first,
)
from clients.models.mlp import Mlp
from clients.supervised import Supervised
from fedsim.contracts import ClientData, ClientInfo, Context, DataSpec
from fedsim.federation import TrainOrder
from fedsim.params import Layout
from fedsim.training.corrupted import CorruptedMethod
from fedsim.training.functional import model_tensors
from fedsim.training.optimizers import Adam, Sgd
from fedsim.training.sequential import train_client
from fedsim.training.template import SeededModel

SPEC = DataSpec("rows", (3, 8, 8), 10)


def method(optimizer=None, **changes):
    model = SeededModel(Mlp(hidden=6, dropout=0.3), 0, torch.float64)
    return Supervised(model=model, optimizer=optimizer or Sgd(learning_rate=0.1, momentum=0.9), **changes)


@pytest.fixture
def update(colours):
    """What a client's update is under a changed program, by name."""

    def make(honest, change=None):
        rows = colours(20)
        client = ClientInfo(0, ClientData(rows, rows.part(0, 0), rows.part(0, 0), SPEC))
        program = honest.program(client, 1)
        tensors = model_tensors(program.model)
        layout = Layout.of(tensors)
        changed = honest if change is None else CorruptedMethod(honest, change(program))
        found = train_client(changed, client, TrainOrder(1, layout.flatten(tensors), {}), None, 0)
        return layout.unflatten(found.update, {})

    return make


def flat(tensors):
    return torch.cat([tensor.flatten() for tensor in tensors.values()])


def test_unchanged_batches_train_to_the_same_bits_dropout_included(update):
    honest = method(epochs=2, batch_size=8)
    same = update(honest, lambda program: change_batches(program, lambda batch: batch))
    assert torch.equal(flat(same), flat(update(honest)))


def test_changed_batches_train_to_others(update):
    honest = method(batch_size=8)
    changed = update(
        honest, lambda program: change_batches(program, lambda batch: batch._replace(y=9 - batch.y))
    )
    assert not torch.equal(flat(changed), flat(update(honest)))


def test_longer_training_at_another_rate_is_that_of_a_client_told_so(update):
    told = method(Sgd(learning_rate=0.05, momentum=0.9), epochs=4)
    changed = update(method(epochs=1), lambda program: train_longer(program, 4, 0.5))
    assert torch.equal(flat(changed), flat(update(told)))


@pytest.mark.parametrize(
    "optimizer",
    [
        Sgd(learning_rate=0.1, momentum=0.9, weight_decay=0.1),
        Adam(learning_rate=0.01, weight_decay=0.1),
        Adam(learning_rate=0.01, weight_decay=0.1, decoupled=True),
    ],
)
def test_outside_its_mask_an_update_is_exactly_zero(update, optimizer):
    def masks(program):
        generator = torch.Generator().manual_seed(3)
        return {
            name: torch.rand(tensor.shape, generator=generator) < 0.4
            for name, tensor in model_tensors(program.model).items()
        }

    kept = {}

    def change(program):
        kept.update(masks(program))
        return then_project(program, keep_update_in(kept))

    found = update(method(optimizer, epochs=3, batch_size=8), change)
    for name, value in found.items():
        assert not value[~kept[name]].any()
        assert value[kept[name]].any()


def test_an_update_stays_in_its_ball(update):
    honest = method(epochs=3, batch_size=8)
    free = flat(update(honest)).norm()
    bounded = flat(update(honest, lambda program: then_project(program, keep_update_within(0.1)))).norm()
    loose = update(honest, lambda program: then_project(program, keep_update_within(100.0)))
    assert bounded <= 0.1 * (1 + 1e-12) < free
    assert torch.equal(flat(loose), flat(update(honest)))


def test_own_projections_and_transforms_come_on_top(update):
    order = []

    def noting(word, value):
        def note(tensors, context):
            order.append(word)
            return value(tensors)

        return note

    def change(program):
        once = then_project(program, noting("first", lambda tensors: tensors))
        twice = then_project(once, noting("second", lambda tensors: tensors))
        inner = transform_first(twice, noting("inner", lambda gradient: gradient))
        return transform_first(inner, noting("outer", lambda gradient: gradient))

    update(method(batch_size="full"), change)
    assert order == ["outer", "inner", "first", "second"]


def test_tensors_without_a_mask_or_that_stay_private_are_left_alone():
    context = Context({"a": torch.zeros(2)}, {}, {}, 1)
    tensors = {"a": torch.ones(2), "own": torch.ones(3)}
    project = keep_update_in({"a": torch.tensor([True, False]), "own": torch.zeros(3, dtype=torch.bool)})
    found = project(tensors, context)
    assert found["a"].tolist() == [1.0, 0.0]
    assert found["own"] is tensors["own"]


def test_rows_longer_than_the_radius_are_shortened_and_others_keep_their_bits():
    rows = torch.tensor([[3.0, 4.0], [0.3, 0.4], [0.0, 0.0]])
    found = clip_rows(rows, 1.0)
    torch.testing.assert_close(found[0], torch.tensor([0.6, 0.8]), rtol=1e-7, atol=0)
    assert torch.equal(found[1:], rows[1:])


def test_only_trained_values_count_in_the_length_of_a_row():
    rows, trained = torch.tensor([[3.0, 100.0, 4.0]]), torch.tensor([True, False, True])
    assert clip_rows(rows, 5.0, trained).tolist() == rows.tolist()
    torch.testing.assert_close(clip_rows(rows, 1.0, trained), torch.tensor([[0.6, 20.0, 0.8]]))
