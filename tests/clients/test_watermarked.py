"""Owners among the clients of a federation of nodes."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from clients.ditto import Ditto
from clients.flatland.client import FlatLand
from clients.flatland.lorentz import Lorentz
from clients.models.sage import Sage
from clients.supervised import Supervised
from clients.watermarked import PRIVATE, Watermarked, mark_tensors, owner_match, with_mark
from fedsim import plugins
from fedsim.contracts import ClientData, ClientInfo, Context, DataSpec, FederatedData, LocalUpdate
from fedsim.data.examples import Nodes, Rows
from fedsim.errors import ConfigError
from fedsim.federation import EvaluateOrder, TrainOrder
from fedsim.params import Layout
from fedsim.training.functional import model_tensors
from fedsim.training.initial import initial_model
from fedsim.training.optimizers import Adam
from fedsim.training.sequential import evaluate_client, train_client
from fedsim.training.template import SeededModel
from fedsim.watermark.embedding import Embedding, train
from fedsim.watermark.key import own_secret
from fedsim.watermark.loss import pcgrad
from fedsim.watermark.subgraphs import Split

FEATURES, CLASSES, SEED = 200, 5, 5
SPEC = DataSpec("nodes", (FEATURES,), CLASSES)


def part(nodes: int, seed: int, train: int) -> ClientInfo:
    """A graph of its own; the classes look alike in all of them."""
    rng = torch.Generator().manual_seed(seed)
    y = torch.randint(CLASSES, (nodes,), generator=rng)
    rates = 0.05 + 0.25 * torch.rand(CLASSES, FEATURES, generator=torch.Generator().manual_seed(0))
    x = (torch.rand(nodes, FEATURES, generator=rng) < rates[y]).float()
    ends = torch.randint(nodes, (2, 3 * nodes), generator=rng)
    ends = ends[:, ends[0] != ends[1]]
    edges = torch.cat([ends, ends.flip(0)], dim=1)
    order = torch.randperm(nodes, generator=rng)
    splits = [Nodes(x, edges, y, index) for index in (order[:train], order[train:], order[train:])]
    return ClientInfo(0, ClientData(splits[0], splits[1], splits[2], SPEC))


@pytest.fixture(scope="module")
def clients() -> list[ClientInfo]:
    return [replace(part(200, seed, 120), partition=seed) for seed in range(3)]


@pytest.fixture
def secret(tmp_path: Any) -> str:
    (tmp_path / "secret").write_text("c4" * 32 + "\n")
    return str(tmp_path / "secret")


def supervised(**changes: Any) -> Supervised:
    model = SeededModel(Sage(hidden=24, dropout=0.1), SEED)
    known = {"model": model, "optimizer": Adam(learning_rate=0.01), "epochs": 5, "keep_optimizer": True}
    return Supervised(**(known | changes))


def owned(secret: str, **changes: Any) -> Watermarked:
    known = {"method": supervised(), "secret_file": secret, "strength": 100.0, "marks": 60}
    return Watermarked(**(known | changes))


def federate(method: Any, clients: list[ClientInfo], rounds: int) -> tuple[dict[str, Tensor], list[Any]]:
    """Rounds of plain averaging: the shared tensors, and every client's private ones."""
    data = FederatedData(tuple(client.data for client in clients), None, SPEC, {})
    tensors = initial_model(method, data)
    layout, private = Layout.of(tensors), [None for _ in clients]
    vector = layout.flatten(tensors)
    for number in range(1, rounds + 1):
        order = TrainOrder(number, vector, {})
        updates: list[LocalUpdate] = [
            train_client(method, client, order, private[client.partition], SEED) for client in clients
        ]
        private = [update.private for update in updates]
        vector = vector + torch.stack([update.update for update in updates]).mean(dim=0)
    return layout.unflatten(vector, {}), private


def test_the_shared_model_carries_the_owner_s_key(secret: str, clients: list[ClientInfo]) -> None:
    method = owned(secret)
    tensors, private = federate(method, clients, 16)
    model = method.program(clients[0], 1).model
    assert owner_match(model, tensors, private[0]).p < 1e-8
    stranger = mark_tensors(*owned(secret, seed=9).key_of(clients[0]), like=torch.zeros(1))
    assert owner_match(model, tensors, stranger).p > 1e-3
    plain, _ = federate(method.method, clients, 16)
    assert owner_match(model, plain, private[0]).p > 1e-3


def test_nothing_of_the_key_leaves_the_owner(secret: str, clients: list[ClientInfo]) -> None:
    method = owned(secret)
    order = start(method, clients[0])
    update = train_client(method, clients[0], order, None, SEED)
    assert update.uplink == {}
    assert set(update.metrics) == {"train_loss"}
    assert update.update.shape == order.vector.shape
    assert {name for name in update.private if name.startswith(PRIVATE)} == {
        PRIVATE + name for name in ("x", "edges", "nodes", "projection", "signs")
    }
    again = train_client(method, clients[0], order, update.private, SEED)
    kept = {name for name in update.private if name.startswith(PRIVATE)}
    assert all(torch.equal(again.private[name], update.private[name]) for name in kept)


def start(method: Any, client: ClientInfo) -> TrainOrder:
    tensors = model_tensors(method.program(client, 1).model)
    layout = Layout.of(tensors)
    return TrainOrder(1, layout.flatten(tensors), {})


def test_other_clients_run_the_wrapped_program(secret: str, clients: list[ClientInfo]) -> None:
    method = owned(secret)
    assert method.program(clients[1], 1) is method.method.program(clients[1], 1)
    assert method.init(clients[1], torch.Generator()) == {}
    order = start(method, clients[1])
    mine, plain = (train_client(one, clients[1], order, None, SEED) for one in (method, method.method))
    assert torch.equal(mine.update, plain.update)


def in_float64(client: ClientInfo) -> ClientInfo:
    wide = client.data.train.to(torch.device("cpu"), torch.float64)
    return replace(client, data=replace(client.data, train=wide))


def test_an_owner_takes_the_steps_of_the_embedding_that_stands_alone(
    secret: str, clients: list[ClientInfo]
) -> None:
    """The program against `fedsim.watermark.embedding.train`, without dropout."""
    exact = SeededModel(Sage(hidden=24, dropout=0.0), SEED, torch.float64)
    method = owned(secret, method=supervised(model=exact, epochs=4))
    client = in_float64(clients[0])
    update = train_client(method, client, start(method, client), None, SEED)
    key, graph = method.key_of(client)
    graph = replace(graph, x=graph.x.double())
    nodes: Any = client.data.train
    split = Split(nodes.index, torch.arange(0), torch.arange(0))
    options = Embedding(epochs=4, optimizer=Adam(learning_rate=0.01), strength=100.0)
    model = method.program(client, 1).model
    found = train(model, graph, split, options, keys=[key])
    layout = Layout.of(found)
    moved = layout.flatten(found) - layout.flatten(model_tensors(model))
    torch.testing.assert_close(update.update, moved, rtol=1e-8, atol=1e-10)


def test_after_the_last_round_the_owner_trains_as_all(secret: str, clients: list[ClientInfo]) -> None:
    method = owned(secret, last_round=2)
    order = replace(start(method, clients[0]), round=3)
    private = method.init(clients[0], torch.Generator())
    late, plain = (train_client(one, clients[0], order, private, SEED) for one in (method, owned(secret)))
    bare = train_client(method.method, clients[0], order, None, SEED)
    assert torch.equal(late.update, bare.update)
    assert not torch.equal(plain.update, bare.update)


def test_the_pace_is_the_owner_s_alone(secret: str, clients: list[ClientInfo]) -> None:
    method = owned(secret, pace=3.0, last_round=1)
    rates = [
        method.program(client, number).phases[0].optimizer.learning_rate
        for client, number in ((clients[0], 1), (clients[1], 1), (clients[0], 2))
    ]
    assert rates == pytest.approx([0.03, 0.01, 0.01])


@pytest.mark.parametrize("pace", [1.0, 3.0])
def test_flatland_s_kept_optimizer_outlives_the_last_round(
    secret: str, clients: list[ClientInfo], pace: float
) -> None:
    """Its phase has a group of its own; both programs must see as many."""
    model = SeededModel(Lorentz(hidden=6, dropout=0.0), SEED)
    flat = FlatLand(model=model, optimizer=Adam(learning_rate=0.01), keep_optimizer=True)
    method = owned(secret, method=flat, pace=pace, last_round=1)
    order = start_shared(method, clients[0])
    first = train_client(method, clients[0], order, None, SEED)
    later = train_client(method, clients[0], replace(order, round=2), first.private, SEED)
    assert later.steps == first.steps


def start_shared(method: Any, client: ClientInfo) -> TrainOrder:
    program = method.program(client, 1)
    shared = {name: t for name, t in model_tensors(program.model).items() if program.is_shared(name)}
    return TrainOrder(1, Layout.of(shared).flatten(shared), {})


def test_several_owners_have_keys_of_their_own(secret: str, clients: list[ClientInfo]) -> None:
    method = owned(secret, owners=(0, 2), owner="Ada")
    keys = [method.key_of(clients[place])[0] for place in (0, 2)]
    assert [key.owner for key in keys] == ["Ada 0", "Ada 2"]
    assert keys[0].secret != keys[1].secret
    tensors, private = federate(method, clients, 16)
    model = method.program(clients[0], 1).model
    assert [owner_match(model, tensors, private[place]).p < 1e-8 for place in (0, 2)] == [True, True]


def test_a_personal_method_is_wrapped_where_it_trains_what_is_shared(
    secret: str, clients: list[ClientInfo]
) -> None:
    plain = supervised()
    ditto = Ditto(model=plain.model, optimizer=plain.optimizer, epochs=5, keep_optimizer=True, pull=0.1)
    method = owned(secret, method=ditto)
    shared, personal = method.program(clients[0], 1).phases
    known = method.method.program(clients[0], 1).phases
    assert shared.losses is not known[0].losses
    assert personal.losses is known[1].losses
    tensors, private = federate(method, clients, 12)
    assert any(name.startswith("personal/") for name in private[0])
    assert owner_match(method.program(clients[0], 1).model, tensors, private[0]).p < 1e-4


def test_the_owner_s_p_is_told_only_where_asked(secret: str, clients: list[ClientInfo]) -> None:
    for report in (False, True):
        method = owned(secret, report=report)
        private = method.init(clients[0], torch.Generator())
        order = start(method, clients[0])
        evaluate = EvaluateOrder(1, order.vector, {}, {})
        metrics = evaluate_client(method, clients[0], evaluate, private, SEED).metrics
        assert ("diagnostic_watermark_log10_p" in metrics) is report
        others = evaluate_client(method, clients[1], evaluate, None, SEED).metrics
        assert not any("watermark" in name for name in others)


def test_pcgrad_meets_the_task_as_a_whole() -> None:
    rows = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]])
    context = Context({}, {}, {}, 1)

    def task(gradients: Tensor, _: Context) -> Tensor:
        return gradients.sum(dim=0)

    found = with_mark(task)(rows, context)
    torch.testing.assert_close(found, pcgrad(torch.stack([rows[:2].sum(dim=0), rows[2]])))


def test_the_table_of_an_experiment_file(secret: str) -> None:
    model = SeededModel(Sage(), 0)
    table = {"kind": "watermarked", "secret_file": secret, "owners": [1], "method": {"kind": "supervised"}}
    built = plugins.build("clients", table, "client", model=model)
    assert built == Watermarked(method=Supervised(model=model), secret_file=secret, owners=(1,))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"owners": ()}, r"owners must be different partitions, found \[\]"),
        ({"owners": (1, 1)}, r"found \[1, 1\]"),
        ({"owners": (-1,)}, r"found \[-1\]"),
        ({"strength": 0.0}, "strength must be above 0 and finite, found 0.0"),
        ({"margin": -1.0}, "margin must be at least 0 and finite, found -1.0"),
        ({"margin": float("nan")}, "margin must be at least 0 and finite, found nan"),
        ({"strength": float("inf")}, "strength must be above 0 and finite, found inf"),
        ({"pace": 0.0}, "pace must be above 0 and finite, found 0.0"),
        ({"share": float("nan")}, "share must be above 0 and below 1, found nan"),
        ({"sets": 1}, "sets must be at least 2, found 1"),
    ],
)
def test_values_out_of_range_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        owned("none", **changes)


def test_secrets_and_data_that_do_not_do(secret: str, tmp_path: Any, clients: list[ClientInfo]) -> None:
    with pytest.raises(ConfigError, match="secret_file"):
        own_secret(tmp_path / "none", 0)
    for text in ("00", "xyz"):
        (tmp_path / "bad").write_text(text)
        with pytest.raises(ConfigError, match="secret_file"):
            own_secret(tmp_path / "bad", 0)
    few = part(100, 0, 79)
    with pytest.raises(ConfigError, match=r"client 0: 4 sets of 20 nodes need 80 nodes, found 79"):
        owned(secret).key_of(few)
    rows = Rows(torch.zeros(4, 3), torch.zeros(4).long())
    spec = DataSpec("rows", (3,), 2)
    with pytest.raises(ConfigError, match="needs nodes, but the data are rows"):
        owned(secret).key_of(ClientInfo(0, ClientData(rows, rows, rows, spec)))
