"""Tiny data, models and a round loop for tests of local training."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

from fedsim import rng
from fedsim.contracts import (
    Batch,
    ClientData,
    ClientInfo,
    DataSpec,
    FederatedData,
    LocalProgram,
    LocalUpdate,
    ModelBuilder,
    Phase,
)
from fedsim.engine.protocols import Task, WorkerPlace
from fedsim.federation import TrainOrder
from fedsim.params import Layout
from fedsim.training.handler import TrainingSetup
from fedsim.training.initial import initial_model
from fedsim.training.losses import model_draw, supervised_losses
from fedsim.training.optimizers import Sgd
from fedsim.training.sequential import train_client
from fedsim.training.template import SeededModel

CPU = torch.device("cpu")
SEED = 7
CLASSES = 3


@dataclass(frozen=True)
class Table:
    """A stub of `Examples`: rows x [n, f] with labels y [n]."""

    x: Tensor
    y: Tensor

    def __len__(self) -> int:
        return len(self.y)

    def batch(self, index: Tensor | None = None) -> Batch:
        return Batch(self.x, self.y) if index is None else Batch(self.x[index], self.y[index])

    def labels(self) -> Tensor:
        return self.y

    def to(self, device: torch.device, dtype: torch.dtype) -> "Table":
        return replace(self, x=self.x.to(device, dtype), y=self.y.to(device))


class TwoLayer(nn.Module):
    """A body and a head, with optional BatchNorm and dropout between them."""

    def __init__(self, features: int, hidden: int, norm: bool, dropout: float) -> None:
        super().__init__()
        self.body = nn.Linear(features, hidden)
        self.norm = nn.BatchNorm1d(hidden) if norm else None
        self.head = nn.Linear(hidden, CLASSES)
        self.hidden, self.dropout = hidden, dropout

    def forward(self, batch: Batch, noise: Mapping[str, Tensor] | None = None) -> Tensor:
        hidden = self.body(batch.x)
        hidden = torch.tanh(hidden if self.norm is None else self.norm(hidden))
        return self.head(hidden * noise["mask"] if noise and "mask" in noise else hidden)

    def draw(self, batch: Batch, rng: torch.Generator) -> dict[str, Tensor]:
        if not self.dropout:
            return {}
        kept = torch.rand(len(batch.x), self.hidden, generator=rng, dtype=torch.float64) >= self.dropout
        return {"mask": kept.to(batch.x.dtype) / (1 - self.dropout)}


@dataclass(frozen=True, kw_only=True)
class TwoLayerBuilder:
    hidden: int = 5
    norm: bool = False
    dropout: float = 0.0

    def build(self, spec: DataSpec) -> nn.Module:
        return TwoLayer(spec.shape[0], self.hidden, self.norm, self.dropout)


def seeded(dtype: torch.dtype = torch.float64, **table: object) -> SeededModel:
    return SeededModel(TwoLayerBuilder(**table), SEED, dtype)


def table(seed: int, count: int, features: int = 4) -> Table:
    """Rows whose labels depend on their inputs."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, features, generator=generator, dtype=torch.float64)
    return Table(x, (x[:, :CLASSES] + torch.tensor([0.0, 0.3, -0.2])).argmax(dim=1))


def federated(counts: tuple[int, ...] = (10, 7), features: tuple[int, ...] | None = None) -> FederatedData:
    """One client per count."""
    widths = features or (4,) * len(counts)
    clients = tuple(
        ClientData(
            table(10 * i, count, width),
            table(10 * i + 1, 4, width),
            table(10 * i + 2, 6, width),
            DataSpec("rows", (width,), CLASSES),
        )
        for i, (count, width) in enumerate(zip(counts, widths, strict=True))
    )
    return FederatedData(clients, None, clients[0].spec, {})


def everything(name: str) -> bool:
    return True


def is_body(name: str) -> bool:
    return name.startswith("body.")


@dataclass(frozen=True, kw_only=True)
class Method:
    """Supervised training with every piece replaceable."""

    model: ModelBuilder
    phase: dict = field(default_factory=dict)
    program_options: dict = field(default_factory=dict)
    extra: Callable = lambda client, rng: {}
    end: Callable = lambda before, after, private, downlink, steps: ({}, private)

    def init(self, client, rng):
        return self.extra(client, rng)

    def program(self, client: ClientInfo, round: int) -> LocalProgram:
        model = self.model.build(client.spec)
        options = {
            "trains": everything,
            "losses": supervised_losses(model),
            "draw": model_draw(model),
            "optimizer": Sgd(learning_rate=0.1, momentum=0.9),
            "epochs": 2,
            "batch_size": 4,
        }
        phases = (Phase(**(options | self.phase)),)
        return LocalProgram(
            **({"model": model, "is_shared": everything, "phases": phases} | self.program_options)
        )

    def finish(self, before, after, private, downlink, steps):
        return self.end(before, after, private, downlink, steps)


def order_of(method, data, round=1, kind=TrainOrder, **options):
    tensors = initial_model(method, data)
    layout = Layout.of(tensors)
    return kind(round, layout.flatten(tensors), layout.integers_of(tensors), **options)


def train(method, data, private=None, partition=0, order=None, seed=None):
    client = ClientInfo(partition, data.clients[partition])
    return train_client(method, client, order or order_of(method, data), private, seed or SEED)


Rule = Callable[[Tensor, list[LocalUpdate]], tuple[Tensor, dict[str, Tensor]]]


def mean_rule(vector: Tensor, updates: list[LocalUpdate]) -> tuple[Tensor, dict[str, Tensor]]:
    """FedAvg, weighted by examples."""
    total = sum(update.examples for update in updates)
    return vector + sum(update.update * (update.examples / total) for update in updates), {}


@dataclass
class Played:
    """What a few rounds left: the server's tensors, each client's private ones, all updates by round."""

    tensors: dict[str, Tensor]
    private: dict[int, Mapping[str, Tensor]]
    updates: list[list[LocalUpdate]]


def play(
    method: object,
    data: FederatedData,
    rounds: int,
    rule: Rule = mean_rule,
    dtype: torch.dtype = torch.float64,
    stacked: bool = False,
) -> Played:
    """Full participation; integer tensors come from the largest client."""
    tensors = initial_model(method, data)
    layout = Layout.of(tensors)
    vector, integers = layout.flatten(tensors), layout.integers_of(tensors)
    handler = TrainingSetup(method, SEED, dtype, stacked=stacked)(data, WorkerPlace(0, CPU))
    partitions = tuple(range(len(data.clients)))
    private, history, downlink = dict.fromkeys(partitions), [], {}
    for number in range(1, rounds + 1):
        order = TrainOrder(number, vector, integers, downlink)
        results = handler.run(order, Task(partitions, tuple(private.values())))
        for result in results:
            assert isinstance(result, LocalUpdate), getattr(result, "traceback", result)
        vector, downlink = rule(vector, results)
        private = {result.partition: result.private for result in results}
        integers = max(results, key=lambda result: result.examples).integers
        history.append(results)
    return Played(layout.unflatten(vector, integers), private, history)


def orders(round: int, partition: int, count: int, epochs: int, phase: int = 0) -> list[Tensor]:
    """The permutations of a phase's epochs."""
    stream = rng.stream(SEED, f"shuffle/{phase}", round, partition)
    return [torch.randperm(count, generator=stream) for _ in range(epochs)]


def mini_batches(data: Table, size: int, permutations: list[Tensor]) -> list[tuple[Tensor, Tensor]]:
    """Inputs and labels of every step."""
    return [
        (data.x[index], data.y[index])
        for permutation in permutations
        for index in torch.split(permutation, size)
    ]


def assert_equal(found: Mapping[str, Tensor], expected: Mapping[str, Tensor], rtol: float = 1e-10) -> None:
    """Same names, and values within `rtol` (float64), integers exactly."""
    assert set(found) == set(expected)
    for name, value in expected.items():
        exact = not value.is_floating_point()
        torch.testing.assert_close(
            found[name], value.detach(), rtol=0 if exact else rtol, atol=0 if exact else rtol
        )


@pytest.fixture(scope="session", autouse=True)
def _one_thread():
    """As in a worker: threads of tiny operations stall one another on a shared machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def tiny() -> SimpleNamespace:
    """The functions and classes of this file."""
    return SimpleNamespace(
        SEED=SEED,
        CLASSES=CLASSES,
        CPU=CPU,
        Table=Table,
        TwoLayer=TwoLayer,
        TwoLayerBuilder=TwoLayerBuilder,
        seeded=seeded,
        table=table,
        federated=federated,
        play=play,
        orders=orders,
        mini_batches=mini_batches,
        assert_equal=assert_equal,
        Method=Method,
        is_body=is_body,
        order_of=order_of,
        train=train,
    )
