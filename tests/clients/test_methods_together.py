"""What all client methods have in common: stacked runs, continued runs, tables of experiment files."""

import dataclasses
import pickle

import pytest
import torch

from clients.apfl import Apfl
from clients.ditto import Ditto
from clients.fedbn import FedBn
from clients.fedper import FedPer
from clients.fedprox import FedProx
from clients.fedrep import FedRep
from clients.finetune import FineTune
from clients.local import Local
from clients.supervised import Supervised
from fedsim import plugins
from fedsim.contracts import LocalUpdate
from fedsim.engine.protocols import Task, WorkerPlace
from fedsim.federation import TrainOrder
from fedsim.params import Layout
from fedsim.training.handler import TrainingSetup
from fedsim.training.initial import initial_model
from fedsim.training.optimizers import Adam, Sgd

SIZES = (10, 7, 4, 12, 10, 8)  # batches of 4: last ones of 2 and 3 examples, whole ones
KINDS = {
    "supervised": (Supervised, {"private": ["head"]}),
    "local": (Local, {}),
    "finetune": (FineTune, {"tune_epochs": 2}),
    "fedprox": (FedProx, {"mu": 0.5}),
    "fedper": (FedPer, {}),
    "fedrep": (FedRep, {"head_epochs": 2}),
    "fedbn": (FedBn, {}),
    "ditto": (Ditto, {"pull": 0.5}),
    "apfl": (Apfl, {"alpha": 0.25, "alpha_rate": 0.3}),
}
OPTIMIZERS = {
    "sgd": Sgd(learning_rate=0.05, momentum=0.9, weight_decay=0.01),
    "adam": Adam(learning_rate=0.02, weight_decay=0.01),
}


def method_of(tiny, kind, optimizer):
    cls, options = KINDS[kind]
    options = {name: tuple(value) if isinstance(value, list) else value for name, value in options.items()}
    model = tiny.seeded(norm=True, dropout=0.3)
    return cls(model=model, optimizer=optimizer, epochs=2, batch_size=4, keep_optimizer=True, **options)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("kind", KINDS)
def test_stacked_clients_equal_single_ones(tiny, kind, optimizer):
    method, data = method_of(tiny, kind, OPTIMIZERS[optimizer]), tiny.federated(SIZES)
    alone = tiny.play(method, data, 3)
    stacked = tiny.play(method, data, 3, stacked=True)
    assert all(update.detour is None for updates in stacked.updates for update in updates)
    tiny.assert_equal(stacked.tensors, alone.tensors, rtol=1e-9)
    for partition in range(len(SIZES)):
        tiny.assert_equal(stacked.private[partition], alone.private[partition], rtol=1e-8)


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_continued_in_another_worker_has_the_same_bits(tiny, kind):
    """What a checkpoint holds is enough: tensors by name, each client's private ones, the round."""
    method, data = method_of(tiny, kind, OPTIMIZERS["adam"]), tiny.federated(SIZES)
    whole, parts = run(tiny, method, data, [3]), run(tiny, method, data, [1, 2])
    assert torch.equal(whole[0], parts[0])
    for first, second in zip(whole[1], parts[1], strict=True):
        assert first.keys() == second.keys()
        assert all(torch.equal(value, second[name]) for name, value in first.items())


def run(tiny, method, data, stretches):
    """Rounds in stretches, with everything pickled, and the clients elsewhere, between two of them."""
    tensors = initial_model(method, data)
    layout = Layout.of(tensors)
    vector, integers = layout.flatten(tensors), layout.integers_of(tensors)
    private, number = [None] * len(data.clients), 0
    for stretch in stretches:
        vector, integers, private, method = pickle.loads(pickle.dumps((vector, integers, private, method)))
        handler = TrainingSetup(method, tiny.SEED, torch.float64)(data, WorkerPlace(number, tiny.CPU))
        for _ in range(stretch):
            number += 1
            order = TrainOrder(number, vector, integers)
            updates = handler.run(order, Task(tuple(range(len(private))), tuple(private)))
            assert all(isinstance(update, LocalUpdate) for update in updates)
            total = sum(update.examples for update in updates)
            vector = vector + sum(update.update * (update.examples / total) for update in updates)
            private, integers = [update.private for update in updates], updates[0].integers
    return vector, private


@pytest.mark.parametrize("kind", KINDS)
def test_the_table_of_an_experiment_file_becomes_the_method(tiny, kind):
    cls, options = KINDS[kind]
    table = {"kind": kind, "epochs": 2, "optimizer": {"kind": "adam", "learning_rate": 0.02}, **options}
    found = plugins.build("clients", table, "client", model=tiny.seeded())
    assert type(found) is cls
    given = {n: tuple(v) if isinstance(v, list) else v for n, v in options.items()}
    assert {name: getattr(found, name) for name in given} == given
    assert pickle.loads(pickle.dumps(found)) == found
    assert hash(found) == hash(dataclasses.replace(found))
