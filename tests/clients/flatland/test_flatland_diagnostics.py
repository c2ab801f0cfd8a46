"""What a client tells of its model and graph, from its tensors to a line of rounds.jsonl."""

import dataclasses

import pytest
import torch

from clients.flatland.client import FlatLand
from clients.flatland.column import PrivateColumn
from clients.flatland.curvature import forman_ricci, radius, simple_graph
from clients.flatland.lorentz import Lorentz
from fedsim.contracts import ClientData, ClientInfo
from fedsim.federation import EvaluateOrder
from fedsim.run.results import client_metrics, summarise
from fedsim.training.optimizers import Adam
from fedsim.training.sequential import evaluate_client
from fedsim.training.template import SeededModel

FACTS = {"delta", "delta_mean", "delta_relative", "degree_tail", "degree_mean", "forman_ricci"}


def method_of(table, **options):
    return FlatLand(model=SeededModel(table, 3, torch.float64), optimizer=Adam(learning_rate=0.03), **options)


def told(method, data, played, flat, partition):
    own = data.clients[partition]
    moved = own.train.to(torch.device("cpu"), torch.float64)
    client = ClientInfo(partition, ClientData(moved, moved, moved, own.spec))
    order = EvaluateOrder(3, played.vector, {})
    return evaluate_client(method, client, order, played.private[partition], flat.SEED)


def diagnostics_of(evaluation):
    metrics = evaluation.metrics.items()
    return {n.removeprefix("diagnostic_"): v.mean for n, v in metrics if n.startswith("diagnostic_")}


@pytest.mark.parametrize("task", ["nodes", "graphs"])
def test_numbers_of_model_and_graph(flat, task):
    data = flat.of_nodes() if task == "nodes" else flat.of_graphs()
    method = method_of(Lorentz(hidden=4, per_layer=True), diagnostics=True)
    method = method if task == "nodes" else dataclasses.replace(method, batch_size=3)
    played, layers = flat.play(method, data, 3), 2 if task == "nodes" else 3
    found = diagnostics_of(told(method, data, played, flat, 1))
    per_layer = {
        f"{what}_{i}" for what in ("k", "time_norm", "space_norm", "residual") for i in range(layers)
    }
    assert set(found) == per_layer | {f"graph_{name}" for name in FACTS}
    expected = radius(played.private[1]["curvature"]).tolist()
    assert [found[f"k_{i}"] for i in range(layers)] == pytest.approx(expected)
    batch = data.clients[1].train.batch()
    graph = simple_graph(batch.edge_index, len(batch.x))
    assert found["graph_forman_ricci"] == pytest.approx(forman_ricci(graph))
    assert found["graph_degree_mean"] == pytest.approx(graph.sum() / len(batch.x))
    x = batch.x.double()
    m = played.private[1]["convolutions.0.time"]
    k = expected[0]
    length = x.norm(dim=1).clamp(max=3.0)
    space = (k**0.5 * torch.sinh(length / k**0.5)).clamp(max=5.0)
    assert found["time_norm_0"] == pytest.approx(float(((space**2 + k).sqrt() * m.norm()).mean()))
    assert 0 < found["residual_0"] < 1e-13


def test_nothing_is_told_or_kept_unless_asked(flat):
    data = flat.of_nodes()
    method = method_of(Lorentz(hidden=4))
    played = flat.play(method, data, 1)
    assert diagnostics_of(told(method, data, played, flat, 0)) == {}
    assert not any(name.startswith("graph/") for name in played.private[0])


def test_asking_changes_no_trained_bit(flat):
    data = flat.of_nodes()
    for stacked in (False, True):
        first = flat.play(method_of(Lorentz(hidden=4)), data, 2, stacked=stacked)
        second = flat.play(method_of(Lorentz(hidden=4), diagnostics=True), data, 2, stacked=stacked)
        assert torch.equal(first.vector, second.vector)


def test_the_euclidean_control_tells_what_it_has(flat):
    data = flat.of_nodes()
    method = method_of(PrivateColumn(hidden=4), diagnostics=True)
    found = diagnostics_of(told(method, data, flat.play(method, data, 1), flat, 0))
    assert {"time_norm_0", "space_norm_1", "graph_delta"} <= set(found)
    assert not any(name.startswith(("k_", "residual")) for name in found)


def test_a_record_holds_every_client_s_value(flat):
    data = flat.of_nodes()
    method = method_of(Lorentz(hidden=4), diagnostics=True)
    played = flat.play(method, data, 2)
    evaluations = [told(method, data, played, flat, partition) for partition in range(3)]
    pooled, spread = client_metrics(evaluations)
    own = [diagnostics_of(one)["k_0"] for one in evaluations]
    assert spread["client_diagnostic_k_0"]["by_client"] == {str(i): k for i, k in enumerate(own)}
    assert pooled["client_diagnostic_k_0"] == pytest.approx(sum(own) / 3)
    assert "client_mean_diagnostic_k_0" not in pooled
    accuracy = spread["client_test_accuracy"]["by_client"]
    assert accuracy["1"] == evaluations[1].metrics["test_accuracy"].mean
    record = {"round": 1, "metrics": pooled, "clients": spread}
    entry = summarise([record], {"evaluated_clients": "all"})["client_diagnostic_k_0"]
    assert entry["last"]["by_client"]["2"] == own[2]
    assert (entry["model"], entry["examples"]) == ("personal", "each client's own data")
