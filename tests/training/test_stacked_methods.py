"""The proof methods of `methods/`, stacked: every update equals the one of a client that runs alone."""

import importlib.util
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from fedsim.contracts import ClientInfo, Failure
from fedsim.training.optimizers import Adam, Sgd

ROUNDS = 3
SIZES = (10, 7, 4, 1, 10, 9, 5)  # whole batches, last ones of 1, 2, 3; fewer examples than a batch
MOMENTUM = Sgd(learning_rate=0.1, momentum=0.9, weight_decay=0.01)


def module(name: str) -> ModuleType:
    path = Path(__file__).parent / "methods" / f"test_{name}.py"
    spec = importlib.util.spec_from_file_location(f"proof_{name}", path)
    assert spec
    assert spec.loader
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


@dataclass(frozen=True)
class Stackable:
    """Any method, with a stack key."""

    method: Any

    def init(self, client, rng):
        return self.method.init(client, rng)

    def program(self, client: ClientInfo, round: int):
        return replace(self.method.program(client, round), stack=("proof", client.spec, round))

    def finish(self, *arguments):
        return self.method.finish(*arguments)


def agree(tiny, first, second, tolerance=1e-9):
    """Two histories: every field of every update."""
    compared = 0
    for alone, stacked in zip(first.updates, second.updates, strict=True):
        for a, b in zip(alone, stacked, strict=True):
            compared += 1
            assert (a.partition, a.examples, a.steps) == (b.partition, b.examples, b.steps)
            assert (a.update - b.update).norm() <= tolerance * a.update.norm()
            assert list(a.uplink) == list(b.uplink)
            assert list(a.private) == list(b.private)
            for left, right in ((a.uplink, b.uplink), (a.private, b.private), (a.integers, b.integers)):
                for name, value in left.items():
                    assert value.dtype == right[name].dtype, name
                    assert value.shape == right[name].shape, name
                tiny.assert_equal(right, left, tolerance)
            assert b.metrics["train_loss"].count == a.metrics["train_loss"].count
            assert b.metrics["train_loss"].total == pytest.approx(
                a.metrics["train_loss"].total, rel=tolerance
            )
    return compared


def both(tiny, method, data, rule=None, expected_detour=None):
    options = {} if rule is None else {"rule": rule}
    first = tiny.play(method, data, ROUNDS, **{k: v() for k, v in options.items()})
    second = tiny.play(method, data, ROUNDS, stacked=True, **{k: v() for k, v in options.items()})
    for updates in second.updates:
        for one in updates:
            assert one.detour == expected_detour, one.detour
    assert agree(tiny, first, second) == ROUNDS * len(data.clients)


def without_single_rows(sizes):
    """BatchNorm refuses a batch of one example."""
    return tuple(size + (size % 4 == 1) for size in sizes)


def build(tiny, name):
    found = module(name)
    model, sgd = tiny.seeded(), MOMENTUM
    data, rule = tiny.federated(SIZES), None
    if name == "apfl":
        method = found.Apfl(
            model=model, alpha=0.5, batch_size=4, optimizer=sgd, mixing=Sgd(learning_rate=2.0)
        )
    elif name == "batch_norm_and_dropout":
        method = found.Plain(
            model=tiny.seeded(norm=True, dropout=0.4), batch_size=4, optimizer=sgd, private_norm=True
        )
        data = tiny.federated(without_single_rows(SIZES))
    elif name == "ditto":
        method = found.Ditto(model=model, pull=0.7, batch_size=4, optimizer=sgd)
    elif name == "dp_sgd":
        method = found.DpSgd(model=tiny.seeded(dropout=0.4), clip=0.5, sigma=0.3, batch_size=4, optimizer=sgd)
    elif name == "fedrep":
        method = found.FedRep(model=model, head_epochs=2, body_epochs=1, batch_size=4, optimizer=sgd)
    elif name == "input_widths":
        method = found.OwnInput(model=model, batch_size=4, optimizer=sgd)
        data = tiny.federated(SIZES, features=(4, 6, 4, 6, 4, 6, 4))
    elif name == "pcgrad":
        method = found.Marked(model=model, batch_size=4, optimizer=Adam(learning_rate=0.05))
    elif name == "private_from_data":
        method = found.WithOffset(model=model, batch_size=4, optimizer=sgd)
    else:
        method = found.Scaffold(model=model, batch_size=4, learning_rate=0.1)
        rule = found.scaffold_rule
    return Stackable(method), data, rule


PROOFS = sorted(
    path.stem.removeprefix("test_") for path in (Path(__file__).parent / "methods").glob("test_*")
)


@pytest.mark.parametrize("name", PROOFS)
def test_a_proof_method_is_the_same_stacked(tiny, name):
    method, data, rule = build(tiny, name)
    both(tiny, method, data, rule)


@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("batch_size", [None, 1, 3, 4])
@pytest.mark.parametrize(
    "optimizer",
    [
        Sgd(learning_rate=0.1),
        Sgd(learning_rate=0.1, momentum=0.9, nesterov=True),
        Adam(learning_rate=0.02, weight_decay=0.1),
        Adam(learning_rate=0.02, weight_decay=0.1, decoupled=True),
    ],
)
def test_clients_of_unequal_sizes(tiny, optimizer, batch_size, keep):
    method = tiny.Method(
        model=tiny.seeded(dropout=0.3),
        phase={"optimizer": optimizer, "batch_size": batch_size},
        program_options={"keep_optimizer": keep},
    )
    both(tiny, Stackable(method), tiny.federated(SIZES))


def augmented(batch, rng):
    return batch._replace(
        x=batch.x + 0.1 * torch.randn(batch.x.shape, generator=rng, dtype=batch.x.dtype)
    ), {}


def unit_head(tensors, context):
    return {"head.weight": tensors["head.weight"] / tensors["head.weight"].norm()}


def loses_sign(gradient, context):
    return gradient if float(gradient.sum()) > 0 else 2 * gradient  # control flow that cannot be mapped


@pytest.mark.parametrize(
    "phase",
    [
        {"draw": augmented},
        {"project": unit_head},
        {"transform": loses_sign},
        {"transform": lambda gradient, context: gradient + context.round},
        {"groups": ((lambda name: name.endswith("bias"), Adam(learning_rate=0.01)),)},
        {"groups": ((lambda name: name == "head.weight", Sgd(learning_rate=0.01)),)},
        {"epochs": 0},
    ],
)
def test_pieces_of_a_phase(tiny, phase):
    method = tiny.Method(model=tiny.seeded(), phase=phase, program_options={"keep_optimizer": True})
    both(tiny, Stackable(method), tiny.federated(SIZES))


def test_a_program_that_cannot_be_mapped_runs_alone_and_says_why(tiny):
    plain = tiny.Method(model=tiny.seeded())

    def branching(tensors, batch, context):
        losses = (tensors["body.weight"].square().sum() * batch.x.mean()).unsqueeze(0)
        return (losses if float(losses.detach()) > 0 else 2 * losses), {}

    method = replace(plain, phase={"losses": branching})
    played = tiny.play(Stackable(method), tiny.federated((10, 7)), 1, stacked=True)
    for update in played.updates[0]:
        assert not update.detour.failed
        assert "cannot be mapped over clients" in update.detour.reason


def test_a_program_without_a_key_runs_alone(tiny):
    played = tiny.play(tiny.Method(model=tiny.seeded()), tiny.federated((10, 7)), 1, stacked=True)
    assert played.updates[0][0].detour.reason == "its program has no `stack` key"
    assert not played.updates[0][0].detour.failed


def test_a_stack_that_raises_names_the_culprit_and_lets_the_others_finish(tiny):
    from fedsim.contracts import LocalUpdate
    from fedsim.engine.protocols import Task, WorkerPlace
    from fedsim.training.handler import TrainingSetup

    data = tiny.federated((10, 7, 9))
    torn = replace(data.clients[1].train, y=data.clients[1].train.y + 7)  # no such class
    data = replace(data, clients=(data.clients[0], replace(data.clients[1], train=torn), data.clients[2]))
    method = Stackable(tiny.Method(model=tiny.seeded()))
    handler = TrainingSetup(method, tiny.SEED, torch.float64, stacked=True)(data, WorkerPlace(0, tiny.CPU))
    first, second, third = handler.run(tiny.order_of(method, data), Task((0, 1, 2), (None,) * 3))
    assert isinstance(second, Failure)
    assert second.partition == 1
    for one in (first, third):
        assert isinstance(one, LocalUpdate)
        assert one.detour.failed


def test_a_client_alone_in_its_task_runs_stacked_or_says_why_not(tiny):
    from fedsim.engine.protocols import Task, WorkerPlace
    from fedsim.training.handler import TrainingSetup

    data, plain = tiny.federated((10, 7)), tiny.Method(model=tiny.seeded())
    alone, keyless = (
        TrainingSetup(method, tiny.SEED, torch.float64, stacked=True)(data, WorkerPlace(0, tiny.CPU)).run(
            tiny.order_of(method, data), Task((1,), (None,))
        )
        for method in (Stackable(plain), plain)
    )
    assert alone[0].detour is None
    assert keyless[0].detour.reason == "its program has no `stack` key"
    assert (alone[0].update - keyless[0].update).norm() <= 1e-12 * keyless[0].update.norm()
