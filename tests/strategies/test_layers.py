import warnings

import pytest
import torch

from fedsim import plugins
from fedsim.contracts import DataSpec
from fedsim.errors import RoundError
from fedsim.params import Layout
from strategies.layers import output_layer, pieces, statistics

# PyG compiles a class while it is imported, which torch 2.13 deprecates; tests turn warnings into errors.
with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    import torch_geometric.nn  # noqa: F401

SPECS = {
    "logistic": DataSpec("rows", (6,), 3),
    "mlp": DataSpec("rows", (6,), 3),
    "cnn": DataSpec("rows", (1, 8, 8), 3),
    "resnet18": DataSpec("rows", (3, 32, 32), 3),
    "gcn": DataSpec("nodes", (6,), 3),
    "sage": DataSpec("nodes", (6,), 3),
    "gin": DataSpec("graphs", (6,), 3),
}


@pytest.mark.parametrize("kind", SPECS)
def test_the_output_layer_of_our_models_is_their_head(kind):
    model = plugins.build("models", {"kind": kind}, "model").build(SPECS[kind])
    tensors = model.state_dict()
    found = output_layer(Layout.of(tensors))
    assert {piece.name for piece in found} == {name for name in tensors if name.startswith("head.")}
    assert {piece.shape[0] for piece in found} == {3}


def test_columns_are_those_of_the_flat_vector():
    tensors = {
        "a": torch.arange(6.0).view(2, 3),
        "n": torch.tensor(3),
        "b": torch.tensor(7.0),
        "c": torch.ones(2),
    }
    layout = Layout.of(tensors)
    flat = layout.flatten(tensors)
    for piece in pieces(layout):
        assert torch.equal(flat[piece.columns].view(piece.shape), tensors[piece.name])


@pytest.mark.parametrize(
    ("shapes", "wanted"),
    [
        (
            {"0.weight": (10, 10), "0.bias": (10,), "2.weight": (10, 10), "2.bias": (10,)},
            ["2.weight", "2.bias"],
        ),
        (
            {"model.fc1.weight": (8, 4), "model.fc2.weight": (3, 8), "model.fc2.bias": (3,)},
            ["model.fc2.weight", "model.fc2.bias"],
        ),
        ({"w": (4, 3)}, ["w"]),
        ({"w": (4, 3), "scale": (1,)}, ["w"]),
    ],
)
def test_the_output_layer_of_other_models(shapes, wanted):
    layout = Layout.of({name: torch.zeros(shape) for name, shape in shapes.items()})
    assert [piece.name for piece in output_layer(layout)] == wanted


def test_without_a_matrix_there_is_none():
    with pytest.raises(RoundError, match="share the last layer, or choose another"):
        output_layer(Layout.of({"bias": torch.zeros(3)}))


def test_statistics_are_what_no_optimiser_trains(layout):
    assert [piece.name for piece in statistics(layout)] == ["norm.running_var"]
