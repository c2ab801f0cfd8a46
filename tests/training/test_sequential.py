import copy
import dataclasses

import pytest
import torch
from torch.nn import functional

from fedsim.contracts import ClientInfo
from fedsim.federation import EvaluateOrder
from fedsim.params import Layout
from fedsim.training.functional import model_tensors
from fedsim.training.initial import initial_model
from fedsim.training.optimizers import Adam, Sgd
from fedsim.training.sequential import evaluate_client


def same(first, second):
    return (
        torch.equal(first.update, second.update)
        and all(torch.equal(first.private[k], second.private[k]) for k in first.private | second.private)
        and all(torch.equal(first.integers[k], second.integers[k]) for k in first.integers | second.integers)
        and first.metrics == second.metrics
    )


def test_nothing_that_is_passed_in_changes(tiny):
    data = tiny.federated((10, 7))
    method = tiny.Method(
        model=tiny.seeded(norm=True, dropout=0.3),
        phase={"project": lambda tensors, context: {n: t.clamp(-1, 1) for n, t in tensors.items()}},
        program_options={"is_shared": tiny.is_body, "keep_optimizer": True, "tune": ()},
        extra=lambda client, rng: {"norm.weight": torch.full((5,), 2.0, dtype=torch.float64)},
    )
    order = tiny.order_of(method, data)
    first = tiny.train(method, data, order=order)
    template = method.model.build(data.spec)
    own = list(template.state_dict(keep_vars=True).values())
    held = [order, first.private, data, template.state_dict()]
    before = copy.deepcopy(held)
    tiny.train(method, data, first.private, order=order)
    tune = dataclasses.replace(
        method,
        program_options=method.program_options
        | {"tune": method.program(ClientInfo(0, data.clients[0]), 1).phases},
    )
    evaluate_client(
        tune,
        ClientInfo(0, data.clients[0]),
        EvaluateOrder(1, order.vector, order.integers),
        first.private,
        tiny.SEED,
    )
    assert torch.equal(before[0].vector, order.vector)
    for old, new in ((before[1], first.private), (before[3], template.state_dict())):
        assert old.keys() == new.keys()
        assert all(torch.equal(old[name], new[name]) for name in old)
    for old, new in zip(before[2].clients, data.clients, strict=True):
        assert torch.equal(old.train.x, new.train.x)
        assert torch.equal(old.train.y, new.train.y)
    assert all(a is b for a, b in zip(own, template.state_dict(keep_vars=True).values(), strict=True))
    assert template.training


def test_a_loss_that_writes_into_buffers_reaches_no_other_client(tiny):
    data = tiny.federated((10, 7))
    model = tiny.seeded(norm=True).build(data.spec)

    def careless(tensors, batch, context):
        logits = torch.func.functional_call(model, dict(tensors), (batch,))  # updates buffers in place
        return functional.cross_entropy(logits, batch.y), {}

    method = tiny.Method(model=tiny.seeded(norm=True), phase={"losses": careless})
    order = tiny.order_of(method, data)
    before = copy.deepcopy(order)
    found = tiny.train(method, data, order=order)
    assert torch.equal(order.vector, before.vector)
    assert order.integers["norm.num_batches_tracked"] == 0
    assert same(found, tiny.train(tiny.Method(model=tiny.seeded(norm=True)), data))


def test_a_client_depends_on_seed_round_and_partition_alone(tiny):
    data = tiny.federated((10, 7))
    method = tiny.Method(model=tiny.seeded(norm=True, dropout=0.3), program_options={"keep_optimizer": True})
    alone = tiny.train(method, data, partition=1)
    torch.manual_seed(5)
    tiny.train(method, data, partition=0)
    assert same(tiny.train(method, data, partition=1), alone)
    assert not same(tiny.train(method, data, partition=1, seed=8), alone)
    later = tiny.order_of(method, data, round=2)
    assert not same(tiny.train(method, data, partition=1, order=later), alone)


def test_the_result_is_complete(tiny):
    data = tiny.federated((10, 7))
    found = tiny.train(tiny.Method(model=tiny.seeded(norm=True)), data)
    assert (found.partition, found.examples, found.steps) == (0, 10, 6)  # batches of 4, 4, 2; twice
    assert found.metrics["train_loss"].count == 20
    assert found.update.dtype == torch.float64
    assert found.integers["norm.num_batches_tracked"] == 6
    assert found.private == {}
    assert found.uplink == {}


@pytest.mark.parametrize("batch_size", [None, 10, 11])
def test_one_batch_holds_all_examples_in_their_order(tiny, batch_size):
    data = tiny.federated((10,))
    method = tiny.Method(model=tiny.seeded(), phase={"batch_size": batch_size, "epochs": 3})
    found = tiny.train(method, data)
    model = copy.deepcopy(tiny.seeded().build(data.spec))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for _ in range(3):
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(data.clients[0].train.batch()), data.clients[0].train.y)
        losses.append(loss.item())
        loss.backward()
        optimizer.step()
    expected = (
        Layout.of(model_tensors(model)).flatten(model_tensors(model)) - tiny.order_of(method, data).vector
    )
    torch.testing.assert_close(found.update, expected, rtol=1e-12, atol=1e-12)
    assert found.metrics["train_loss"].mean == pytest.approx(sum(losses) / 3, rel=1e-12)


def test_frozen_tensors_stay_and_unused_parameters_have_no_gradient(tiny):
    data = tiny.federated((10,))
    model = tiny.seeded().build(data.spec)

    def body_only(tensors, batch, context):
        return (batch.x @ tensors["body.weight"].T).square().mean().unsqueeze(0), {}

    head_frozen = tiny.Method(model=tiny.seeded(), phase={"trains": tiny.is_body})
    split = model.body.weight.numel() + model.body.bias.numel()
    found = tiny.train(head_frozen, data).update
    assert found[split:].eq(0).all()
    assert found[:split].ne(0).all()
    unused = tiny.train(tiny.Method(model=tiny.seeded(), phase={"losses": body_only}), data).update
    assert unused[model.body.weight.numel() :].eq(0).all()
    assert unused[: model.body.weight.numel()].ne(0).all()


def test_groups_have_their_own_optimizers(tiny):
    data = tiny.federated((10,))
    groups = ((lambda name: name.endswith("bias"), Sgd(learning_rate=0.01)),)
    method = tiny.Method(model=tiny.seeded(), phase={"groups": groups, "optimizer": Adam(learning_rate=0.02)})
    model = copy.deepcopy(tiny.seeded().build(data.spec))
    first = torch.optim.Adam([model.body.weight, model.head.weight], lr=0.02)
    second = torch.optim.SGD([model.body.bias, model.head.bias], lr=0.01)
    permutations = tiny.orders(1, 0, 10, 2)
    for x, y in tiny.mini_batches(data.clients[0].train, 4, permutations):
        model.zero_grad()
        functional.cross_entropy(model.head(torch.tanh(model.body(x))), y).backward()
        first.step()
        second.step()
    expected = (
        Layout.of(model_tensors(model)).flatten(model_tensors(model)) - tiny.order_of(method, data).vector
    )
    torch.testing.assert_close(tiny.train(method, data).update, expected, rtol=1e-10, atol=1e-12)


def test_a_projection_holds_after_every_step(tiny):
    data = tiny.federated((10,))
    seen = []

    def unit(tensors, context):
        seen.append(float(tensors["head.weight"].norm()))
        return {"head.weight": tensors["head.weight"] / tensors["head.weight"].norm()}

    method = tiny.Method(model=tiny.seeded(), phase={"project": unit})
    order = tiny.order_of(method, data)
    found = tiny.train(method, data, order=order)
    layout = Layout.of(initial_model(method, data))
    after = layout.unflatten(order.vector + found.update, {})
    assert after["head.weight"].norm().item() == pytest.approx(1, rel=1e-12)
    assert len(seen) == found.steps


def test_private_results_are_no_views_of_larger_storage(tiny):
    data = tiny.federated((10,))
    method = tiny.Method(
        model=tiny.seeded(),
        program_options={"is_shared": tiny.is_body, "keep_optimizer": True},
        phase={"groups": ((lambda name: name.startswith("head."), Sgd(learning_rate=0.3, momentum=0.5)),)},
    )
    found = tiny.train(method, data)
    assert set(found.private) == {
        "head.weight",
        "head.bias",
        "optimizer/0/0/momentum",
        "optimizer/0/1/momentum",
    }
    for value in found.private.values():
        assert value.untyped_storage().nbytes() == value.numel() * value.element_size()
        assert not value.requires_grad


def test_finish_sees_everything_and_decides(tiny):
    data = tiny.federated((10,))

    def end(before, after, private, downlink, steps):
        assert set(before) == {"body.weight", "body.bias"}
        assert set(after) == {"body.weight", "body.bias", "head.weight", "head.bias", "count"}
        assert set(private) == {"head.weight", "head.bias", "count"}
        moved = after["body.weight"] - before["body.weight"]
        return {"moved": moved, "steps": torch.tensor(steps)}, {**private, "count": private["count"] + 1}

    method = tiny.Method(
        model=tiny.seeded(),
        program_options={"is_shared": tiny.is_body},
        phase={"trains": lambda name: name != "count"},
        extra=lambda client, rng: {"count": torch.tensor(3)},
        end=end,
    )
    found = tiny.train(method, data)
    assert found.private["count"] == 4
    assert found.uplink["steps"] == 6
    assert torch.equal(found.uplink["moved"].reshape(-1), found.update[:20])


def test_tuning_changes_the_evaluation_and_nothing_else(tiny):
    data = tiny.federated((10, 7))
    plain = tiny.Method(model=tiny.seeded())
    phases = plain.program(ClientInfo(0, data.clients[0]), 1).phases
    tuned = tiny.Method(model=tiny.seeded(), program_options={"tune": phases})
    order = tiny.order_of(plain, data, kind=EvaluateOrder, splits=("test",))
    client = ClientInfo(0, data.clients[0])
    before = evaluate_client(plain, client, order, None, tiny.SEED)
    after = evaluate_client(tuned, client, order, None, tiny.SEED)
    assert set(after.metrics) == {"test_accuracy", "test_loss"}
    assert after.metrics["test_loss"].mean < before.metrics["test_loss"].mean
    assert after == evaluate_client(tuned, client, order, None, tiny.SEED)


def test_the_same_private_start_in_evaluation_and_training(tiny):
    data = tiny.federated((10,))
    seen = []

    def extra(client, rng):
        seen.append(torch.rand(2, generator=rng))
        return {"own": seen[-1]}

    method = tiny.Method(model=tiny.seeded(), extra=extra, phase={"trains": lambda name: name != "own"})
    order = tiny.order_of(method, data, kind=EvaluateOrder, round=5)
    evaluate_client(method, ClientInfo(0, data.clients[0]), order, None, tiny.SEED)
    tiny.train(method, data)
    assert torch.equal(seen[0], seen[1])
