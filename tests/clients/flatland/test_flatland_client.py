"""What stays, what travels, where K starts, and that tiers, workers and restarts change nothing."""

import copy
import dataclasses
import pickle

import pytest
import torch

from clients.flatland.client import FlatLand
from clients.flatland.column import PrivateColumn
from clients.flatland.curvature import radius, simple_graph, starting_k
from clients.flatland.label_prior import LabelPrior
from clients.flatland.lorentz import Lorentz
from clients.local import Local
from clients.models.gcn import Gcn
from clients.supervised import Supervised
from fedsim import plugins
from fedsim.contracts import ClientInfo
from fedsim.errors import ConfigError
from fedsim.federation import EvaluateOrder
from fedsim.training.optimizers import Adam, Sgd
from fedsim.training.sequential import evaluate_client
from fedsim.training.template import SeededModel

ADAM = Adam(learning_rate=0.03, weight_decay=0.01)


def method_of(table, dtype=torch.float64, *, optimizer=ADAM, **options):
    return FlatLand(model=SeededModel(table, 3, dtype), optimizer=optimizer, **options)


def graph_method(table, **options):
    return method_of(table, batch_size=3, **options)


MODELS = {
    "lorentz": Lorentz(hidden=4),
    "per layer, chen, log": Lorentz(hidden=4, per_layer=True, map="chen", decoder="log"),
    "fixed": Lorentz(hidden=4, curvature="fixed", dropout=0.0),
    "unit": Lorentz(hidden=4, curvature="unit"),
    "column": PrivateColumn(hidden=4),
    "column, distance": PrivateColumn(hidden=4, decoder="distance"),
}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("task", ["nodes", "graphs"])
@pytest.mark.parametrize("dense", [0.7, 0.06])
def test_stacked_clients_equal_single_ones(flat, name, task, dense):
    data = flat.of_nodes(dense=dense) if task == "nodes" else flat.of_graphs(dense=dense)
    method = method_of(MODELS[name]) if task == "nodes" else graph_method(MODELS[name])
    alone, stacked = flat.play(method, data, 3), flat.play(method, data, 3, stacked=True)
    assert float((alone.vector - stacked.vector).norm() / alone.vector.norm()) < 1e-9
    for first, second in zip(alone.private, stacked.private, strict=True):
        assert first.keys() == second.keys()
        for key, value in first.items():
            torch.testing.assert_close(second[key], value, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("task", ["nodes", "graphs"])
def test_stacked_clients_equal_single_ones_in_float32(flat, task):
    data = flat.of_nodes() if task == "nodes" else flat.of_graphs()
    make = method_of if task == "nodes" else graph_method
    method = make(Lorentz(hidden=4), dtype=torch.float32, optimizer=Sgd(learning_rate=0.05))
    alone = flat.play(method, data, 3, dtype=torch.float32)
    stacked = flat.play(method, data, 3, dtype=torch.float32, stacked=True)
    assert float((alone.vector - stacked.vector).norm() / alone.vector.norm()) < 1e-5


def test_time_like_parameters_stay_and_space_like_ones_travel(flat):
    played = flat.play(method_of(Lorentz(hidden=4, map="chen")), flat.of_nodes(), 3)
    shared = {f"convolutions.{i}.{part}" for i in (0, 1) for part in ("space", "bias")}
    assert set(played.tensors) == shared | {"head.points", "head.bias"}
    own = {f"convolutions.{i}.{part}" for i in (0, 1) for part in ("time", "time_scale")} | {"curvature"}
    for private in played.private:
        assert {name for name in private if not name.startswith("optimizer/")} == own
    first, second = played.private[:2]
    assert all(not torch.equal(first[name], second[name]) for name in own)


@pytest.mark.parametrize(
    ("options", "private"),
    [
        ({"decoupled": (1,)}, {"curvature", "convolutions.1.time"}),
        ({"decoupled": ()}, {"curvature"}),
        (
            {"private": ("head",)},
            {"curvature", "convolutions.0.time", "convolutions.1.time", "head.points", "head.bias"},
        ),
        ({"share": "all"}, set()),
        ({"share": "nothing"}, None),
    ],
)
def test_controls_of_what_is_shared(flat, options, private):
    data = flat.of_nodes()
    played = flat.play(method_of(Lorentz(hidden=4), optimizer=Sgd(learning_rate=0.1), **options), data, 1)
    everything = set(method_of(Lorentz(hidden=4)).model.build(data.spec).state_dict())
    assert set(played.private[0]) == (everything if private is None else private)
    assert set(played.tensors) == everything - set(played.private[0])
    assert method_of(Lorentz(), **options).federates == (private is not None)


def test_k_starts_from_the_client_s_own_graph_and_is_not_decayed(flat):
    data = flat.of_nodes()
    method = method_of(Lorentz(hidden=4, per_layer=True), optimizer=Sgd(learning_rate=1e-9, weight_decay=1e8))
    starts = []
    for partition, client in enumerate(data.clients):
        (raw,) = method.init(ClientInfo(partition, client), torch.Generator()).values()
        graph = simple_graph(client.train.edge_index, len(client.train.x))
        torch.testing.assert_close(radius(raw), torch.full((2,), starting_k(graph)).double())
        starts.append(float(radius(raw)[0]))
    assert len(set(starts)) > 1
    played = flat.play(method, data, 1)
    for start, private in zip(starts, played.private, strict=True):
        assert float(radius(private["curvature"])[0]) == pytest.approx(start, abs=1e-6)
    more = dataclasses.replace(method, triangles=True).init(ClientInfo(0, data.clients[0]), torch.Generator())
    assert float(radius(more["curvature"])[0]) >= starts[0]


def test_fixed_k_stays_and_learned_k_moves(flat):
    data = flat.of_nodes()
    for curvature, moved in (("fixed", False), ("learned", True)):
        method = method_of(Lorentz(hidden=4, curvature=curvature))
        start = method.init(ClientInfo(0, data.clients[0]), torch.Generator())["curvature"]
        played = flat.play(method, data, 3)
        assert torch.equal(played.private[0]["curvature"], start) != moved


def test_all_shared_with_unit_curvature_is_plain_fedavg(flat):
    data, table = flat.of_nodes(), Lorentz(hidden=4, curvature="unit")
    options = {"optimizer": ADAM, "epochs": 2, "keep_optimizer": True}
    ours = flat.play(FlatLand(model=SeededModel(table, 3, torch.float64), share="all", **options), data, 3)
    plain = flat.play(Supervised(model=SeededModel(table, 3, torch.float64), **options), data, 3)
    assert torch.equal(ours.vector, plain.vector)


def test_re_placement_on_another_worker_changes_no_bit(flat):
    data, method = flat.of_graphs(), graph_method(Lorentz(hidden=4), dtype=torch.float32)
    for stacked in (False, True):
        here = flat.play(method, data, 4, dtype=torch.float32, stacked=stacked)
        moved = flat.play(method, data, 4, dtype=torch.float32, stacked=stacked, places=(0, 1, 2))
        assert torch.equal(here.vector, moved.vector)
        for first, second in zip(here.private, moved.private, strict=True):
            assert all(torch.equal(value, second[name]) for name, value in first.items())


def test_data_sets_of_different_widths_keep_their_first_and_last_layers(flat):
    data = flat.of_graphs(widths=[9, 4, 6])
    method = graph_method(Lorentz(hidden=4), private=("convolutions.0", "head"))
    for stacked in (False, True):
        played = flat.play(method, data, 2, stacked=stacked)
        assert set(played.tensors) == {f"convolutions.{i}.{p}" for i in (1, 2) for p in ("space", "bias")}
        assert [p["convolutions.0.space"].shape[1] for p in played.private] == [9, 4, 6]


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 1e-5), (torch.float64, 1e-13)])
def test_the_manifold_residual_stays_small_through_200_rounds(flat, dtype, bound):
    """Measured on centroids before they are lifted again, with K as it has just become."""
    data = flat.of_nodes(sizes=(12, 9), scale=10.0)
    method = method_of(Lorentz(hidden=3), dtype, optimizer=Adam(learning_rate=0.1))
    model = copy.deepcopy(method.model.build(data.spec))
    batches = [client.train.to(torch.device("cpu"), dtype).batch() for client in data.clients]
    radii, worst = [], []

    def check(number, shared, private):
        for batch, own in zip(batches, private, strict=True):
            kept = {name: value for name, value in own.items() if not name.startswith("optimizer/")}
            model.load_state_dict({**shared, **kept})
            watch = {}
            with torch.no_grad():
                assert torch.isfinite(model.watched(batch, None, watch)).all(), number
            worst.append(max(float(watch["residual_0"]), float(watch["residual_1"])))
            radii.append(float(watch["k_0"]))

    flat.play(method, data, 200, dtype=dtype, stacked=True, each_round=check)
    assert len(worst) == 400
    assert max(worst) < bound
    assert max(radii) - min(radii) > 0.5  # K did change


def test_the_constant_class_predictor(flat):
    data = flat.of_nodes(sizes=(12, 9, 30))
    method = Local(
        model=SeededModel(LabelPrior(), 0, torch.float64), optimizer=Sgd(learning_rate=1.0), batch_size="full"
    )
    for stacked in (False, True):
        played = flat.play(method, data, 1, stacked=stacked)
        for partition, client in enumerate(data.clients):
            labels = client.train.labels()
            counts = torch.bincount(labels, minlength=flat.CLASSES)
            order = EvaluateOrder(1, played.vector, {}, splits=("train",))
            info = ClientInfo(partition, client)
            found = evaluate_client(method, info, order, played.private[partition], flat.SEED).metrics
            assert found["train_accuracy"].total == counts.max()


@pytest.mark.parametrize(
    ("table", "options", "message"),
    [
        (Gcn(), {}, 'needs time-like parameters, which GcnModel lacks: choose model.kind = "lorentz"'),
        (
            Lorentz(),
            {"decoupled": (2,)},
            r"client.decoupled = \[2\], but the model's convolutions are 0 to 1",
        ),
        (Lorentz(), {"private": ("tail",)}, "client.private: the model has no part 'tail'; it has"),
    ],
)
def test_methods_that_make_no_sense_are_refused(flat, table, options, message):
    client = ClientInfo(0, flat.of_nodes().clients[0])
    with pytest.raises(ConfigError, match=message):
        method_of(table, **options).program(client, 1)


def test_the_table_of_an_experiment_file_becomes_the_method():
    table = {
        "kind": "flatland",
        "decoupled": [0],
        "share": "space",
        "optimizer": {"kind": "adam", "learning_rate": 0.01},
    }
    model = plugins.build("models", {"kind": "lorentz", "hidden": 8, "curvature": "fixed"}, "model")
    found = plugins.build("clients", table, "client", model=SeededModel(model, 0))
    assert isinstance(found, FlatLand)
    assert (found.decoupled, found.keep_optimizer, found.model.builder) == ((0,), True, model)
    assert pickle.loads(pickle.dumps(found)) == found
    with pytest.raises(ConfigError, match=r"client\.share"):
        plugins.build("clients", {**table, "share": "time"}, "client", model=SeededModel(model, 0))
