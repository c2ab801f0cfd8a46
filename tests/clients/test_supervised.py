"""The supervised method against loops written with torch.optim."""

import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from clients.models.cnn import Cnn
from clients.models.gcn import Gcn
from clients.models.gin import Gin
from clients.models.mlp import Mlp
from clients.models.resnet import ResNet18
from clients.supervised import Supervised
from fedsim import plugins, rng
from fedsim.contracts import ClientData, ClientInfo, DataSpec, Examples
from fedsim.data.examples import Graphs, Nodes, Rows
from fedsim.errors import ConfigError
from fedsim.federation import TrainOrder
from fedsim.params import Layout
from fedsim.training.functional import model_tensors
from fedsim.training.optimizers import Adam, Sgd
from fedsim.training.schedules import StepDecay
from fedsim.training.sequential import train_client
from fedsim.training.template import SeededModel

SEED = 7


def normal(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def labels(n: int, classes: int) -> Tensor:
    return torch.randint(classes, (n,), generator=torch.Generator().manual_seed(1))


def rows(n: int, *shape: int) -> tuple[DataSpec, Examples]:
    return DataSpec("rows", shape, 3), Rows(normal(n, *shape), labels(n, 3), dtype=torch.float64)


def nodes(n: int) -> tuple[DataSpec, Examples]:
    edges = torch.stack([torch.arange(n - 1), torch.arange(1, n)])
    both = torch.cat([edges, edges.flip(0)], dim=1)
    counted = torch.arange(0, n, 2)
    return DataSpec("nodes", (5,), 3), Nodes(normal(n, 5), both, labels(n, 3), counted, dtype=torch.float64)


def graphs(n: int) -> tuple[DataSpec, Examples]:
    ends = torch.arange(0, 4 * n + 1, 4)
    path = torch.tensor([[0, 1, 1, 2, 2, 3], [1, 0, 2, 1, 3, 2]])
    return DataSpec("graphs", (5,), 3), Graphs(
        normal(4 * n, 5), path.repeat(1, n), labels(n, 3), ends, torch.arange(0, 6 * n + 1, 6), torch.float64
    )


def client_of(spec: DataSpec, examples: Examples) -> ClientInfo:
    return ClientInfo(2, ClientData(examples, examples, examples, spec))


def order_of(model: nn.Module, round: int) -> TrainOrder:
    tensors = model_tensors(model)
    layout = Layout.of(tensors)
    return TrainOrder(round, layout.flatten(tensors), layout.integers_of(tensors))


def after(method: Supervised, client: ClientInfo, round: int = 1) -> dict[str, Tensor]:
    """The client's shared tensors after one round that starts from the template."""
    model = method.program(client, round).model
    order = order_of(model, round)
    update = train_client(method, client, order, None, SEED)
    return Layout.of(model_tensors(model)).unflatten(order.vector + update.update, update.integers)


def by_hand(
    method: Supervised, client: ClientInfo, optimizer: Any, epochs: int, batch_size: int, clip: float = 0
) -> dict[str, Tensor]:
    """Algorithm 1's ClientUpdate on a fresh module, with the documented streams."""
    model: Any = method.model.builder.build(client.spec).double()  # type: ignore[attr-defined]
    model.load_state_dict(method.model.build(client.spec).state_dict())
    steps = optimizer(model.parameters())
    shuffle, chance = (rng.stream(SEED, f"{name}/0", 1, client.partition) for name in ("shuffle", "draw"))
    examples = client.data.train
    for _ in range(epochs):
        if batch_size >= len(examples):
            parts = [torch.arange(len(examples))]
        else:
            parts = list(torch.randperm(len(examples), generator=shuffle).split(batch_size))
        for part in parts:
            batch = examples.batch(part)
            logits = model(batch, model.draw(batch, chance))
            labels = batch.y
            if batch.mask is not None:
                logits, labels = logits[batch.mask], labels[batch.mask]
            steps.zero_grad()
            functional.cross_entropy(logits, labels).backward()
            if clip:
                nn.utils.clip_grad_norm_(model.parameters(), clip)
            steps.step()
    return dict(model.state_dict())


def close(found: dict[str, Tensor], expected: dict[str, Tensor], tolerance: float) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=tolerance, atol=tolerance)


def seeded(table: Any) -> SeededModel:
    return SeededModel(table, SEED, torch.float64)


@pytest.mark.parametrize(
    ("table", "data"),
    [
        (Mlp(hidden=(8, 6), dropout=0.3), rows(50, 4)),
        (Cnn(channels=(3, 4), hidden=6, dropout=0.2), rows(20, 2, 8, 8)),
        (ResNet18(norm="batch", width=2), rows(12, 1, 8, 8)),
        (Gin(hidden=4, layers=2, dropout=0.3), graphs(11)),
    ],
)
def test_momentum_epochs_and_batches_follow_torch(table: Any, data: tuple[DataSpec, Examples]) -> None:
    method = Supervised(
        model=seeded(table),
        optimizer=Sgd(learning_rate=0.05, momentum=0.9, weight_decay=1e-3),
        epochs=3,
        batch_size=8,
    )
    client = client_of(*data)

    def sgd(parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=0.05, momentum=0.9, weight_decay=1e-3)

    close(after(method, client), by_hand(method, client, sgd, epochs=3, batch_size=8), 1e-10)


def test_nodes_are_trained_all_at_once_with_adam_and_dropout() -> None:
    method = Supervised(
        model=seeded(Gcn(hidden=6)), optimizer=Adam(learning_rate=0.02, weight_decay=1e-2), epochs=4
    )
    client = client_of(*nodes(30))

    def adam(parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.Adam(parameters, lr=0.02, weight_decay=1e-2)

    assert method.program(client, 1).phases[0].batch_size is None
    close(after(method, client), by_hand(method, client, adam, epochs=4, batch_size=99), 1e-9)


def test_clipping_follows_torch() -> None:
    method = Supervised(model=seeded(Mlp(hidden=5)), batch_size="full", clip_norm=0.1, epochs=5)
    client = client_of(*rows(20, 4))

    def sgd(parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=0.1)

    expected = by_hand(method, client, sgd, epochs=5, batch_size=20, clip=0.1)
    close(after(method, client), expected, 1e-5)  # torch divides by the norm + 1e-6
    loose = Supervised(model=seeded(Mlp(hidden=5)), batch_size="full", epochs=5)
    assert not torch.allclose(after(loose, client)["head.bias"], expected["head.bias"], rtol=1e-3)


def test_the_schedule_scales_the_learning_rate_of_the_round() -> None:
    method = Supervised(
        model=seeded(Mlp()),
        optimizer=Adam(learning_rate=0.4, epsilon=1e-5),
        schedule=StepDecay(every=2, decay=0.5),
    )
    client = client_of(*rows(5, 4))
    found = [method.program(client, number).phases[0].optimizer for number in (1, 2, 3, 5)]
    assert found == [Adam(learning_rate=rate, epsilon=1e-5) for rate in (0.4, 0.4, 0.2, 0.1)]


@pytest.mark.parametrize(("given", "on_rows"), [("auto", 32), ("full", None), (None, None), (7, 7), (1, 1)])
def test_batch_size_in_words(given: Any, on_rows: int | None) -> None:
    method = Supervised(model=seeded(Mlp()), batch_size=given)
    assert method.program(client_of(*rows(5, 4)), 1).phases[0].batch_size == on_rows


def test_a_number_on_nodes_is_refused_by_name() -> None:
    method = Supervised(model=seeded(Gcn()), batch_size=32)
    with pytest.raises(ConfigError, match=r"client\.batch_size = 32, but the data are nodes"):
        method.program(client_of(*nodes(6)), 1)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"epochs": 0}, "epochs must be at least 1, found 0"),
        ({"batch_size": 0}, "batch_size must be at least 1, found 0"),
        ({"clip_norm": 0.0}, "clip_norm must be above 0, found 0.0"),
        ({"clip_norm": float("nan")}, "clip_norm must be above 0, found nan"),
    ],
)
def test_values_out_of_range_are_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Supervised(model=seeded(Mlp()), **values)


def test_everything_is_shared_and_nothing_private() -> None:
    method = Supervised(model=seeded(ResNet18(norm="batch", width=2)))
    client = client_of(*rows(6, 1, 8, 8))
    program = method.program(client, 1)
    assert all(program.is_shared(name) for name in program.model.state_dict())
    assert method.init(client, torch.Generator()) == {}
    update = train_client(method, client, order_of(program.model, 1), None, SEED)
    assert (update.private, update.uplink, update.examples, update.steps) == ({}, {}, 6, 1)


def test_kept_optimizer_state_continues_where_the_last_round_stopped() -> None:
    client = client_of(*rows(10, 4))

    def two_rounds(keep: bool) -> Tensor:
        method = Supervised(
            model=seeded(Mlp(hidden=4)),
            optimizer=Sgd(learning_rate=0.1, momentum=0.9),
            batch_size="full",
            keep_optimizer=keep,
        )
        order, private = order_of(method.program(client, 1).model, 1), None
        for number in (1, 2):
            update = train_client(method, client, TrainOrder(number, order.vector, {}), private, SEED)
            order, private = TrainOrder(number, order.vector + update.update, {}), update.private
        return order.vector

    method = Supervised(
        model=seeded(Mlp(hidden=4)),
        optimizer=Sgd(learning_rate=0.1, momentum=0.9),
        batch_size="full",
        epochs=2,
    )
    start = order_of(method.program(client, 1).model, 1)
    at_once = start.vector + train_client(method, client, start, None, SEED).update
    torch.testing.assert_close(two_rounds(keep=True), at_once, rtol=1e-12, atol=1e-12)
    assert not torch.allclose(two_rounds(keep=False), at_once)


def test_the_table_of_an_experiment_file_becomes_the_method() -> None:
    table = {
        "kind": "supervised",
        "epochs": 2,
        "batch_size": 16,
        "clip_norm": 5,
        "optimizer": {"kind": "adam", "learning_rate": 0.01},
        "schedule": {"kind": "step", "every": 10},
        "keep_optimizer": True,
    }
    found = plugins.build("clients", table, "client", model=seeded(Mlp()))
    assert found == Supervised(
        model=seeded(Mlp()),
        epochs=2,
        batch_size=16,
        clip_norm=5.0,
        optimizer=Adam(learning_rate=0.01),
        schedule=StepDecay(every=10),
        keep_optimizer=True,
    )
    assert pickle.loads(pickle.dumps(found)) == found
