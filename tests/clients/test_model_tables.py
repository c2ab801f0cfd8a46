"""What a model's table and the data may not be, and how it is said."""

import pickle
from typing import Any

import pytest
import torch

from clients.models.cnn import Cnn
from clients.models.gcn import Gcn
from clients.models.gin import Gin
from clients.models.logistic import Logistic
from clients.models.mlp import Mlp
from clients.models.resnet import ResNet18
from clients.models.sage import Sage
from fedsim import plugins
from fedsim.contracts import DataSpec
from fedsim.errors import ConfigError

IMAGES = DataSpec("rows", (3, 32, 32), 10)
TABLE = DataSpec("rows", (14,), 2)
NODES = DataSpec("nodes", (14,), 2)
GRAPHS = DataSpec("graphs", (14,), 2)


@pytest.mark.parametrize(
    ("kind", "values", "message"),
    [
        (Mlp, {"hidden": 0}, "hidden must be at least 1, found 0"),
        (Mlp, {"hidden": (4, 0)}, "hidden must be at least 1, found 0"),
        (Mlp, {"hidden": ()}, "hidden must name at least one layer"),
        (Mlp, {"dropout": 1.0}, "dropout must be at least 0 and below 1, found 1.0"),
        (Mlp, {"dropout": -0.1}, "dropout must be at least 0 and below 1, found -0.1"),
        (Mlp, {"dropout": float("nan")}, "dropout must be at least 0 and below 1, found nan"),
        (Cnn, {"channels": (4, 0)}, "channels must be at least 1, found 0"),
        (Cnn, {"kernel": 0}, "kernel must be at least 1, found 0"),
        (Cnn, {"kernel": 4}, "kernel must be odd, found 4"),
        (Cnn, {"hidden": 0}, "hidden must be at least 1, found 0"),
        (ResNet18, {"width": 0}, "width must be at least 1, found 0"),
        (ResNet18, {"groups": 0}, "groups must be at least 1, found 0"),
        (ResNet18, {"width": 9, "groups": 2}, "groups must divide width, found groups=2 and width=9"),
        (Gcn, {"hidden": 0}, "hidden must be at least 1, found 0"),
        (Gcn, {"layers": 0}, "layers must be at least 1, found 0"),
        (Sage, {"layers": 0}, "layers must be at least 1, found 0"),
        (Sage, {"dropout": 1}, "dropout must be at least 0 and below 1, found 1"),
        (Gin, {"hidden": -1}, "hidden must be at least 1, found -1"),
        (Gin, {"layers": 0}, "layers must be at least 1, found 0"),
    ],
)
def test_values_out_of_range_are_refused(kind: Any, values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message.replace("(", r"\(")):
        kind(**values)


def test_smallest_legal_values_are_taken() -> None:
    assert Mlp(hidden=1, dropout=0).build(TABLE)
    assert Cnn(channels=(1, 1), kernel=1, hidden=1).build(DataSpec("rows", (1, 8, 8), 2))
    assert ResNet18(norm="batch", width=1).build(DataSpec("rows", (1, 8, 8), 2))
    assert Gcn(hidden=1, layers=1).build(NODES)


@pytest.mark.parametrize(
    ("table", "spec", "message"),
    [
        (Logistic(), GRAPHS, r'model.kind = "logistic" serves rows and nodes, but the data are graphs'),
        (Mlp(), GRAPHS, r'model.kind = "mlp" serves rows and nodes, but the data are graphs'),
        (Cnn(), NODES, r'model.kind = "cnn" serves rows, but the data are nodes'),
        (Cnn(), TABLE, r'"cnn" needs rows of shape .* but the data are rows of shape \(14,\)'),
        (Cnn(), DataSpec("rows", (1, 7, 8), 2), r"at least 8 x 8 pixels, but .* \(1, 7, 8\)"),
        (ResNet18(), DataSpec("rows", (1, 8, 7), 2), r"at least 8 x 8 pixels, but .* \(1, 8, 7\)"),
        (ResNet18(), GRAPHS, r'model.kind = "resnet18" serves rows, but the data are graphs'),
        (Gcn(), TABLE, r'model.kind = "gcn" serves nodes and graphs, but the data are rows'),
        (Sage(), IMAGES, r'model.kind = "sage" serves nodes and graphs, but the data are rows'),
        (Gin(), IMAGES, r'model.kind = "gin" serves nodes and graphs, but the data are rows'),
        (Logistic(), DataSpec("rows", (3,), 1), r"needs at least 2 classes, the data have 1"),
    ],
)
def test_data_that_a_model_cannot_serve_are_refused(table: Any, spec: DataSpec, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        table.build(spec)


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        ({"kind": "logistic"}, Logistic()),
        ({"kind": "mlp", "hidden": [32, 16], "dropout": 0.1}, Mlp(hidden=(32, 16), dropout=0.1)),
        ({"kind": "mlp", "hidden": 32, "dropout": 0}, Mlp(hidden=32)),
        ({"kind": "cnn", "channels": [8, 16], "kernel": 5}, Cnn(channels=(8, 16), kernel=5)),
        ({"kind": "resnet18", "norm": "batch"}, ResNet18(norm="batch")),
        ({"kind": "gcn", "hidden": 128}, Gcn(hidden=128)),
        ({"kind": "sage", "normalize": True}, Sage(normalize=True)),
        ({"kind": "gin", "readout": "mean"}, Gin(readout="mean")),
    ],
)
def test_every_model_is_found_by_name_and_hashable(table: dict[str, Any], expected: Any) -> None:
    found = plugins.build("models", table, "model")
    assert found == expected
    assert hash(found) == hash(expected)
    assert pickle.loads(pickle.dumps(found)) == expected


@pytest.mark.parametrize(
    ("table", "spec"),
    [
        (Logistic(), TABLE),
        (Mlp(), TABLE),
        (Cnn(), IMAGES),
        (ResNet18(width=4), IMAGES),
        (Gcn(), NODES),
        (Sage(), GRAPHS),
        (Gin(), GRAPHS),
    ],
)
def test_every_model_has_a_head_for_the_classes(table: Any, spec: DataSpec) -> None:
    torch.manual_seed(0)
    names = [name for name, _ in table.build(spec).named_parameters()]
    assert [name for name in names if name.startswith("head.")]
    assert names == [name for name, _ in table.build(spec).named_parameters()]
