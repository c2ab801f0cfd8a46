"""At tier T0, through Flower messages: no private tensor of a client is in any of them."""

import importlib.util
from pathlib import Path

import torch

from clients.flatland.client import FlatLand
from clients.flatland.lorentz import Lorentz
from fedsim.contracts import LocalUpdate
from fedsim.engine.protocols import WorkerPlace
from fedsim.federation import EvaluateOrder, TrainOrder
from fedsim.flower.client_side import client_app
from fedsim.flower.grid_federation import GridFederation
from fedsim.params import Layout
from fedsim.training.handler import TrainingSetup
from fedsim.training.initial import initial_model
from fedsim.training.optimizers import Adam
from fedsim.training.template import SeededModel


def direct_grid():
    """The grid of `tests/flower` that delivers at once and keeps every message."""
    path = Path(__file__).parents[2] / "flower" / "test_federation_grid.py"
    spec = importlib.util.spec_from_file_location("grid_of_flower_tests", path)
    assert spec
    assert spec.loader
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found.DirectGrid


def test_private_parameters_never_enter_a_message(flat):
    data = flat.of_nodes()
    method = FlatLand(
        model=SeededModel(Lorentz(hidden=4, map="chen", per_layer=True), 3),
        optimizer=Adam(learning_rate=0.05, weight_decay=1e-3),
    )
    handler = TrainingSetup(method, flat.SEED)(data, WorkerPlace(0, torch.device("cpu")))
    grid = direct_grid()(client_app(lambda context, seed: handler), clients=3)
    federation = GridFederation(grid, 3, seed=flat.SEED, patience=1.0)
    tensors = initial_model(method, data)
    layout = Layout.of(tensors)
    vector = layout.flatten(tensors)
    for number in (1, 2, 3):
        updates = federation.train(TrainOrder(number, vector, {}), range(3))
        assert all(isinstance(update, LocalUpdate) for update in updates)
        federation.commit(range(3))
        federation.evaluate(EvaluateOrder(number, vector, {}), range(3))
        vector = vector + torch.stack([update.update for update in updates]).mean(dim=0)
    states = [context.state for context in grid.contexts.values()]
    held = {
        name: array.data
        for state in states
        for record in state.array_records.values()
        for name, array in record.items()
    }
    time_like = {"convolutions.0.time", "convolutions.1.time_scale", "curvature"}
    assert time_like <= held.keys()
    assert {"optimizer/0/0/first", "optimizer/0/1/second"} <= held.keys()
    secrets = [
        a.data for s in states for r in s.array_records.values() for a in r.values() if len(a.data) > 8
    ]
    wire = [message for message in grid.wire if message.has_content()]
    told = "".join(repr(m.content.metric_records) + repr(m.content.config_records) for m in wire)
    assert "curvature" not in told
    for message in wire:
        for record in message.content.array_records.values():
            for name, array in record.items():
                assert not any(part in name for part in ("time", "curvature", "optimizer"))
                assert not any(secret in array.data for secret in secrets)
    sent = [a.data for m in wire for r in m.content.array_records.values() for a in r.values()]
    assert any(updates[1].update.numpy().tobytes() in data for data in sent)  # so the search would find one
