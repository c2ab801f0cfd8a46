from types import SimpleNamespace

import pytest
import torch

from fedsim.contracts import ClientData, DataSpec, FederatedData, LocalUpdate
from fedsim.data.examples import Graphs, Nodes
from fedsim.engine.protocols import Task, WorkerPlace
from fedsim.federation import TrainOrder
from fedsim.params import Layout
from fedsim.training.handler import TrainingSetup
from fedsim.training.initial import initial_model

CLASSES, WIDTH, SEED = 3, 9, 5
CPU = torch.device("cpu")


def a_graph(seed, nodes, features=WIDTH, dense=0.7, scale=1.0):
    """Features, some nodes without any, and edges both ways; some nodes have none."""
    rng = torch.Generator().manual_seed(seed)
    x = torch.randn(nodes, features, generator=rng) * (torch.rand(nodes, features, generator=rng) < dense)
    x[0] = 0.0
    ends = torch.randint(nodes, (2, 2 * nodes), generator=rng)
    ends = torch.unique(ends[:, ends[0] < ends[1]], dim=1)
    return scale * x, torch.cat([ends, ends.flip(0)], dim=1)


def federation(parts, widths, task):
    specs = [DataSpec(task, (width,), CLASSES) for width in widths]
    clients = tuple(ClientData(p, p, p, spec) for p, spec in zip(parts, specs, strict=True))
    return FederatedData(clients, None, specs[0] if len(set(specs)) == 1 else None, {})


def labels(count, seed):
    return torch.randint(CLASSES, (count,), generator=torch.Generator().manual_seed(seed))


def of_nodes(sizes=(12, 9, 15), dense=0.7, scale=1.0):
    parts = []
    for client, size in enumerate(sizes):
        x, edges = a_graph(client, size, dense=dense, scale=scale)
        parts.append(Nodes(x, edges, labels(size, 50 + client), torch.arange(0, size, 2)))
    return federation(parts, [WIDTH] * len(sizes), "nodes")


def of_graphs(sizes=(6, 5, 7), widths=None, dense=0.7, scale=1.0):
    widths, parts = widths or [WIDTH] * len(sizes), []
    for client, (size, width) in enumerate(zip(sizes, widths, strict=True)):
        own = [a_graph(100 * client + i, 2 + (client + i) % 5, width, dense, scale) for i in range(size)]
        node_ends = torch.tensor([0, *(len(x) for x, _ in own)]).cumsum(0)
        edge_ends = torch.tensor([0, *(e.shape[1] for _, e in own)]).cumsum(0)
        x, edges = torch.cat([x for x, _ in own]), torch.cat([e for _, e in own], dim=1)
        parts.append(Graphs(x, edges, labels(size, 50 + client), node_ends, edge_ends))
    return federation(parts, widths, "graphs")


def play(method, data, rounds, *, dtype=torch.float64, stacked=False, each_round=None, places=(0,)):
    """FedAvg with all clients; round r runs in worker `places[r % len]`, made anew where it changes."""
    tensors = initial_model(method, data)
    layout = Layout.of(tensors)
    vector, everyone = layout.flatten(tensors), tuple(range(len(data.clients)))
    private, handler, at = [None] * len(everyone), None, None
    for number in range(1, rounds + 1):
        place = places[number % len(places)]
        if place != at:
            setup = TrainingSetup(method, SEED, dtype, stacked=stacked)
            handler, at = setup(data, WorkerPlace(place, CPU)), place
        results = handler.run(TrainOrder(number, vector, {}), Task(everyone, tuple(private)))
        for result in results:
            assert isinstance(result, LocalUpdate), getattr(result, "traceback", result)
            assert result.detour is None, result.detour
        total = sum(result.examples for result in results)
        vector = vector + sum(result.update * (result.examples / total) for result in results)
        private = [result.private for result in results]
        if each_round is not None:
            each_round(number, layout.unflatten(vector, {}), private)
    return SimpleNamespace(tensors=layout.unflatten(vector, {}), private=private, vector=vector)


@pytest.fixture(scope="session")
def flat():
    """Small graph federations, and a round loop."""
    return SimpleNamespace(
        SEED=SEED,
        CLASSES=CLASSES,
        WIDTH=WIDTH,
        a_graph=a_graph,
        of_nodes=of_nodes,
        of_graphs=of_graphs,
        play=play,
    )
