"""The Lorentz model and its Euclidean control against loops over nodes in plain Python."""

import math

import pytest
import torch

from clients.flatland.column import PrivateColumn
from clients.flatland.geometry import lift, residual
from clients.flatland.lorentz import Lorentz, LorentzModel
from fedsim.contracts import DataSpec
from fedsim.errors import ConfigError
from fedsim.training.template import SeededModel

TABLES = {
    "plain": {},
    "per layer": {"per_layer": True},
    "unit": {"curvature": "unit"},
    "fixed": {"curvature": "fixed"},
    "log": {"decoder": "log"},
    "chen": {"map": "chen"},
    "linear": {"activation": "none"},
    "deep": {"layers": 4, "per_layer": True, "decoder": "log", "map": "chen"},
}


def module_of(table, spec, dtype=torch.float64, seed=1):
    """With every parameter moved away from its start, as training does."""
    model = table.build(spec).to(dtype)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for tensor in model.state_dict().values():
            tensor.add_(0.5 * torch.randn(tensor.shape, generator=generator).to(dtype))
    return model


def weights(edges, nodes):
    """{i: [(j, a_ij)]} of Kipf and Welling's adjacency with self-loops."""
    pairs = {(int(a), int(b)) for a, b in edges.T} | {(i, i) for i in range(nodes)}
    degree = [sum(target == i for _, target in pairs) for i in range(nodes)]
    return {
        i: [(j, 1 / math.sqrt(degree[i] * degree[j])) for j, target in sorted(pairs) if target == i]
        for i in range(nodes)
    }


def norm(row):
    return math.sqrt(sum(value * value for value in row))


def short(row, limit):
    length = norm(row)
    return row if length <= limit else [value * limit / length for value in row]


def lifted(row, k):
    return [math.sqrt(norm(row) ** 2 + k), *row]


def lorentz_center(points, k):
    """Of (weight, point) pairs; the origin of nothing."""
    sums = [sum(w * p[c] for w, p in points) for c in range(len(points[0][1]))]
    square = sums[0] ** 2 - sum(value * value for value in sums[1:])
    return lifted(short([math.sqrt(k) * value / math.sqrt(square) for value in sums[1:]], 5.0), k)


def logits_by_hand(model, table, batch, masks=None):
    """As the README states the layers, for one client, node by node."""
    state = {name: tensor.tolist() for name, tensor in model.state_dict().items()}
    depth, nodes = len(model.convolutions), len(batch.x)

    def k_of(index):
        if table.curvature == "unit":
            return 1.0
        raw = state["curvature"]
        return math.log1p(math.exp(raw[min(index, len(raw) - 1)])) + 0.05

    points = []
    for row in batch.x.tolist():
        v, root = short(row, 3.0), math.sqrt(k_of(0))
        length = norm(v)
        factor = root * math.sinh(length / root) / length if length else 1.0
        points.append(lifted(short([factor * value for value in v], 5.0), k_of(0)))
    around = weights(batch.edge_index, nodes)
    for index in range(depth):
        k, name = k_of(index), f"convolutions.{index}"
        mapped = []
        for point in points:
            rows = [
                m * point[0] + sum(w * value for w, value in zip(line, point[1:], strict=True)) + b
                for m, line, b in zip(
                    state[f"{name}.time"], state[f"{name}.space"], state[f"{name}.bias"], strict=True
                )
            ]
            if table.map == "chen":
                scale = math.exp(state[f"{name}.time_scale"][0])
                time = scale / (1 + math.exp(-rows[0])) + 1.1 * math.sqrt(k)
                rows = rows[1:]
                rows = [value * math.sqrt((time**2 - k) / norm(rows) ** 2) for value in rows]
            mapped.append(lifted(short(rows, 5.0), k))
        points = [lorentz_center([(w, mapped[j]) for j, w in around[i]], k) for i in range(nodes)]
        if index < depth - 1:
            for i, point in enumerate(points):
                space = [max(value, 0.0) if table.activation == "relu" else value for value in point[1:]]
                if masks:
                    space = [v * m for v, m in zip(space, masks[f"dropout.{index}"][i].tolist(), strict=True)]
                points[i] = lifted(space, k)
    k = k_of(depth - 1)
    if batch.graph is not None:
        members = [
            [(1.0, points[i]) for i in range(nodes) if batch.graph[i] == g] for g in range(len(batch.y))
        ]
        points = [lorentz_center(own, k) if own else lifted([0.0] * model.head_width, k) for own in members]
    rows = []
    for point in points:
        if table.decoder == "log":
            length, root = norm(point[1:]), math.sqrt(k)
            factor = root * math.asinh(length / root) / length if length else 1.0
            v = [factor * value for value in point[1:]]
            rows.append(
                [
                    sum(w * x for w, x in zip(line, v, strict=True)) + b
                    for line, b in zip(state["head.weight"], state["head.bias"], strict=True)
                ]
            )
        else:
            rows.append([])
            for center, b in zip(state["head.points"], state["head.bias"], strict=True):
                c = lifted(center, k)
                product = -point[0] * c[0] + sum(x * y for x, y in zip(point[1:], c[1:], strict=True))
                rows[-1].append(b - (-2 * k - 2 * product))
    return torch.tensor(rows, dtype=torch.float64)


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize("task", ["nodes", "graphs"])
@pytest.mark.parametrize("scale", [0.3, 4.0])
def test_logits_follow_the_definition(flat, name, task, scale):
    data = flat.of_nodes(scale=scale) if task == "nodes" else flat.of_graphs(scale=scale)
    table = Lorentz(hidden=4, **TABLES[name])
    model = module_of(table, data.spec)
    batch = data.clients[0].train.to(torch.device("cpu"), torch.float64).batch()
    torch.testing.assert_close(model(batch), logits_by_hand(model, table, batch), rtol=1e-9, atol=1e-9)
    masks = model.draw(batch, torch.Generator().manual_seed(0))
    expected = logits_by_hand(model, table, batch, masks)
    torch.testing.assert_close(model(batch, masks), expected, rtol=1e-9, atol=1e-9)


def column_by_hand(model, table, batch):
    state, x = model.state_dict(), batch.x
    adjacency = torch.zeros(len(x), len(x), dtype=torch.float64)
    for i, row in weights(batch.edge_index, len(x)).items():
        for j, weight in row:
            adjacency[i, j] = weight
    depth = len(model.convolutions)
    for index in range(depth):
        m, space, b = (state[f"convolutions.{index}.{part}"] for part in ("time", "space", "bias"))
        with_column = torch.cat([torch.ones(len(x), 1, dtype=torch.float64), x], dim=1)
        x = adjacency @ (with_column @ torch.cat([m.unsqueeze(1), space], dim=1).T + b)
        x = x.relu() if index < depth - 1 and table.activation == "relu" else x
    if batch.graph is not None:
        x = torch.stack([x[batch.graph == g].mean(dim=0) for g in range(len(batch.y))])
    if table.decoder == "linear":
        return x @ state["head.weight"].T + state["head.bias"]
    return state["head.bias"] - torch.stack([((x - c) ** 2).sum(dim=1) for c in state["head.points"]], dim=1)


@pytest.mark.parametrize("decoder", ["linear", "distance"])
@pytest.mark.parametrize("task", ["nodes", "graphs"])
def test_the_euclidean_control_follows_its_definition(flat, decoder, task):
    data = flat.of_nodes() if task == "nodes" else flat.of_graphs()
    table = PrivateColumn(hidden=4, decoder=decoder)
    model = module_of(table, data.spec)
    batch = data.clients[0].train.to(torch.device("cpu"), torch.float64).batch()
    torch.testing.assert_close(model(batch), column_by_hand(model, table, batch), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", ["decoupled", "chen"])
@pytest.mark.parametrize("k", [0.1, 1.0, 10.0])
def test_every_layer_ends_on_the_manifold_for_any_mixture(flat, dtype, kind, k):
    """M of one client's model, m and K of another's, a third's points: the property behind decoupling."""
    spec = flat.of_nodes().spec
    models = [module_of(Lorentz(hidden=6, layers=3, map=kind), spec, dtype, seed) for seed in range(4)]
    mixed = models[0]
    state = {
        name: sum(m.state_dict()[name] for m in models) / 4
        if name.endswith((".space", ".bias"))
        else models[place % 3 + 1].state_dict()[name]
        for place, name in enumerate(mixed.state_dict())
    }
    state["curvature"] = torch.full_like(state["curvature"], math.log(math.expm1(k - 0.05)))
    state["head.points"] = models[3].state_dict()["head.points"]
    mixed.load_state_dict(state)
    seen = []

    class Watched(LorentzModel):
        def convolve(self, tensors, index, states, batch, watch):
            seen.append((super().convolve(tensors, index, states, batch, watch), self.k(tensors, index)))
            return seen[-1][0]

        def activate(self, tensors, index, states, mask):
            seen.append((super().activate(tensors, index, states, mask), self.k(tensors, index)))
            return seen[-1][0]

        def read_out(self, tensors, states, batch):
            seen.append((super().read_out(tensors, states, batch), self.k(tensors, 0)))
            return seen[-1][0]

    bound = 1e-5 if dtype == torch.float32 else 1e-13
    for data, count in ((flat.of_nodes(scale=3.0), 5), (flat.of_graphs(scale=3.0), 6)):
        mixed.__class__ = Watched
        mixed.on_graphs = data.spec.task == "graphs"
        seen.clear()
        watch = {}
        with torch.no_grad():
            mixed.watched(data.clients[0].train.to(torch.device("cpu"), dtype).batch(), None, watch)
        assert len(seen) == count
        for points, radius in seen:
            assert residual(points, radius).max() < bound
            assert (points[..., 0] > 0).all()
            assert points[..., 1:].norm(dim=-1).max() < 5.001
        assert max(float(watch[f"residual_{i}"]) for i in range(3)) < bound


def test_class_points_follow_k(flat):
    """Their time is recomputed: with K the same space parts are other points of another hyperboloid."""
    model = module_of(Lorentz(hidden=4), flat.of_nodes().spec)
    points = model.head.points.detach()
    for k in (0.1, 1.0, 10.0):
        radius = torch.tensor([k], dtype=torch.float64)
        assert residual(lift(points, radius), radius).max() < 1e-13


def test_a_fresh_model_has_no_time_like_influence(flat):
    spec = flat.of_nodes().spec
    model = SeededModel(Lorentz(hidden=4), 0).build(spec)
    assert all(not c.time.any() for c in model.convolutions)
    assert float(torch.nn.functional.softplus(model.curvature.detach()) + 0.05) == pytest.approx(1.0)
    assert [len(m.convolutions) for m in (model, Lorentz().build(DataSpec("graphs", (9,), 3)))] == [2, 3]


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"hidden": 0}, "hidden must be at least 1, found 0"),
        ({"layers": 0}, "layers must be at least 1, found 0"),
        ({"dropout": 1.0}, r"dropout must be at least 0 and below 1, found 1\.0"),
    ],
)
@pytest.mark.parametrize("kind", [Lorentz, PrivateColumn])
def test_values_out_of_range_are_refused(kind, table, message):
    with pytest.raises(ConfigError, match=message):
        kind(**table)


@pytest.mark.parametrize("kind", ["lorentz", "private_column"])
def test_rows_are_refused(kind):
    table = {"lorentz": Lorentz(), "private_column": PrivateColumn()}[kind]
    with pytest.raises(ConfigError, match=f'model.kind = "{kind}" serves nodes and graphs, but the data are'):
        table.build(DataSpec("rows", (4,), 3))
