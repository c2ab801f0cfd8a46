"""Every graph set of the mirror, with unscaled features: losses and updates stay finite."""

import pytest
import torch

from clients.flatland.client import FlatLand
from clients.flatland.lorentz import Lorentz
from fedsim.contracts import LocalUpdate
from fedsim.data.federate import federate
from fedsim.data.graph_partition import Metis
from fedsim.data.partition import Iid
from fedsim.data.pyg import PyG
from fedsim.data.store import mirror_folder
from fedsim.engine.protocols import Task, WorkerPlace
from fedsim.federation import EvaluateOrder, TrainOrder
from fedsim.params import Layout
from fedsim.training.handler import TrainingSetup
from fedsim.training.initial import initial_model
from fedsim.training.optimizers import Adam
from fedsim.training.template import SeededModel

SMALL = ["WebKB/Texas", "TUDataset/MUTAG"]
LARGE = [
    "Planetoid/Cora",
    "Planetoid/CiteSeer",
    "Amazon/Photo",
    "Amazon/Computers",
    "Coauthor/CS",
    "CitationFull/Cora_ML",
    "WikipediaNetwork/chameleon",
    "Actor",
    "WebKB/Cornell",
    "WebKB/Wisconsin",
    "HeterophilousGraphDataset/Tolokers",
    *(
        f"TUDataset/{name}"
        for name in (
            "PTC_MR",
            "BZR",
            "COX2",
            "DHFR",
            "AIDS",
            "NCI1",
            "ENZYMES",
            "PROTEINS",
            "IMDB-BINARY",
            "IMDB-MULTI",
        )
    ),
]
ROUNDS, CLIENTS = 3, 3


@pytest.mark.skipif(mirror_folder(None) is None, reason="FEDSIM_DATA_MIRROR names no folder")
@pytest.mark.parametrize("name", [*SMALL, *(pytest.param(name, marks=pytest.mark.slow) for name in LARGE)])
@pytest.mark.parametrize("factor", [1.0, 1e4])
def test_no_value_is_ever_not_a_number(name, factor):
    """Raw features, continuous attributes among them, and the same 10,000 times as large; a high rate."""
    graphs = name.startswith("TUDataset")
    source = PyG(name=name, node_attributes=graphs, scale=factor)
    data = federate(source, Iid() if graphs else Metis(), CLIENTS, None, 0)
    method = FlatLand(
        model=SeededModel(Lorentz(hidden=8), 0),
        optimizer=Adam(learning_rate=0.1),
        batch_size=128 if graphs else "auto",
        diagnostics=True,
    )
    tensors = initial_model(method, data)
    layout = Layout.of(tensors)
    vector, everyone = layout.flatten(tensors), tuple(range(CLIENTS))
    handler = TrainingSetup(method, 0, stacked=True)(data, WorkerPlace(0, torch.device("cpu")))
    private = [None] * CLIENTS
    for number in range(1, ROUNDS + 1):
        updates = handler.run(TrainOrder(number, vector, {}), Task(everyone, tuple(private)))
        for update in updates:
            assert isinstance(update, LocalUpdate), update.traceback
            assert torch.isfinite(update.update).all()
            assert all(torch.isfinite(value).all() for value in update.private.values())
        vector = vector + torch.stack([update.update for update in updates]).mean(dim=0)
        private = [update.private for update in updates]
    for one in handler.run(EvaluateOrder(ROUNDS, vector, {}), Task(everyone, tuple(private))):
        means = {key: value.mean for key, value in one.metrics.items() if value.count}
        assert all(abs(value) < float("inf") for value in means.values())
        assert means["diagnostic_residual_0"] < 1e-5
        assert means["diagnostic_residual_1"] < 1e-5
