import pytest
import torch

from fedsim.config import parse
from fedsim.contracts import Failure, LocalEvaluation, LocalUpdate
from fedsim.metrics import Sum
from fedsim.run.assembly import assemble


def experiment(**changes):
    return parse(
        {
            "rounds": 3,
            "federation": {"clients": 6, "clients_per_round": 4, "partition": "iid"},
            "model": "logistic",
            **changes,
        }
    )


@pytest.fixture(scope="session")
def make_parts():
    """Digits among 6 clients, 4 of them per round, with changes to the experiment."""

    def make(seed=0, **changes):
        return assemble(experiment(**changes), seed)

    return make


class FakeFederation:
    """Clients whose replies a test decides: partition -> LocalUpdate, Failure, or None for the plain one."""

    def __init__(self, parts, replies=None):
        self.parts, self.replies = parts, replies or {}
        self.asked, self.committed, self.evaluated, self.orders = [], [], [], []

    def plain(self, partition):
        layout = self.parts.layout
        return LocalUpdate(
            partition=partition,
            update=torch.full((layout.size,), float(partition + 1), dtype=layout.dtype),
            integers={},
            examples=10 * (partition + 1),
            steps=2,
            uplink={},
            metrics={"train_loss": Sum(float(partition), 1)},
            private={},
        )

    def train(self, order, partitions):
        self.asked.append(tuple(partitions))
        self.orders.append(order)
        return [self.replies.get(p) or self.plain(p) for p in partitions]

    def commit(self, partitions):
        self.committed.append(tuple(partitions))

    def evaluate(self, order, partitions):
        self.evaluated.append((order.round, tuple(partitions)))
        return [
            LocalEvaluation(p, {"test_accuracy": Sum(p, 10), "val_accuracy": Sum(1, 2)}) for p in partitions
        ]

    def close(self):
        pass


@pytest.fixture
def fake_federation():
    return FakeFederation


@pytest.fixture
def failed():
    def make(partition, kind="exception", message="boom"):
        return Failure(1, partition, 0, kind, message, "Traceback ...")

    return make
