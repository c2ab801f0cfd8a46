import hashlib

import numpy as np
import pytest
import torch

from fedsim.errors import RoundError
from fedsim.params import Layout, digest


def mixed():
    """Every kind of tensor a model may have, with values that a detour over another type would change."""
    return {
        "weight": torch.tensor([[1.0, 1 / 3], [3e-8, -0.0]]),
        "scale": torch.tensor(2.5),
        "count": torch.tensor(2**60 + 1),
        "empty": torch.zeros(0, 3),
        "half": torch.tensor([0.1, 65504.0], dtype=torch.float16),
        "brain": torch.tensor([0.1, 3e38], dtype=torch.bfloat16),
        "flags": torch.tensor([True, False]),
    }


def test_round_trip_is_exact():
    tensors = mixed()
    layout = Layout.of(tensors)
    vector = layout.flatten(tensors)
    assert vector.dtype == torch.float32
    assert vector.shape == (layout.size,) == (9,)
    found = layout.unflatten(vector, layout.integers_of(tensors))
    assert set(found) == set(tensors)
    for name, value in tensors.items():
        assert found[name].dtype == value.dtype
        assert found[name].shape == value.shape
        assert torch.equal(found[name], value)
    assert digest(found) == digest(tensors)


@pytest.mark.parametrize(
    ("types", "expected"),
    [
        ((), torch.float32),
        ((torch.float16,), torch.float32),
        ((torch.bfloat16, torch.float16), torch.float32),
        ((torch.float16, torch.float64), torch.float64),
        ((torch.float32, torch.float64), torch.float64),
    ],
)
def test_the_vector_has_the_widest_type(types, expected):
    tensors = {str(i): torch.ones(2, dtype=dtype) for i, dtype in enumerate(types)}
    layout = Layout.of(tensors)
    assert layout.dtype == expected
    assert layout.flatten(tensors).dtype == expected


def test_single_precision_is_exact_in_a_double_vector():
    tensors = {"a": torch.rand(50), "b": torch.rand(50, dtype=torch.float64)}
    layout = Layout.of(tensors)
    found = layout.unflatten(layout.flatten(tensors), {})
    assert all(torch.equal(found[name], tensors[name]) for name in tensors)


def test_memory_order_does_not_matter():
    plain = torch.randn(2, 3, 4, 5)
    last = plain.to(memory_format=torch.channels_last)
    layout = Layout.of({"w": plain})
    assert torch.equal(layout.flatten({"w": plain}), layout.flatten({"w": last}))
    assert digest({"w": plain}) == digest({"w": last})


def test_tensors_of_the_vectors_type_are_views():
    layout = Layout.of({"a": torch.zeros(2), "b": torch.zeros(3)})
    vector = torch.zeros(5)
    layout.unflatten(vector, {})["b"].fill_(7)
    assert vector.tolist() == [0, 0, 7, 7, 7]


def test_flatten_copies_and_records_no_gradient():
    tensors = {"a": torch.ones(2, requires_grad=True)}
    vector = Layout.of(tensors).flatten(tensors)
    vector.fill_(0)
    assert not vector.requires_grad
    assert tensors["a"].tolist() == [1, 1]


def test_a_model_of_integers_alone():
    tensors = {"n": torch.tensor([1, 2])}
    layout = Layout.of(tensors)
    assert layout.flatten(tensors).shape == (0,)
    assert torch.equal(layout.unflatten(torch.zeros(0), tensors)["n"], tensors["n"])


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({"a": torch.zeros(3)}, r"Tensor 'a' should have shape \(2,\), found \(3,\)"),
        ({}, r"Tensor 'a' should have shape \(2,\), found None"),
    ],
)
def test_a_tensor_that_does_not_fit_is_named(tensors, message):
    with pytest.raises(RoundError, match=message):
        Layout.of({"a": torch.zeros(2)}).flatten(tensors)


def test_complex_tensors_are_refused():
    with pytest.raises(RoundError, match=r"Tensor 'z' has type torch.complex64, which cannot be averaged"):
        Layout.of({"z": torch.zeros(1, dtype=torch.complex64)})


def test_the_digest_is_sha256_over_names_types_shapes_and_bytes():
    tensors = {"b": torch.tensor([1.5, -2.0]), "a": torch.tensor(3)}
    state = hashlib.sha256(b"a|torch.int64|()|" + np.int64(3).tobytes())
    state.update(b"b|torch.float32|(2,)|" + np.array([1.5, -2.0], dtype=np.float32).tobytes())
    assert digest(tensors) == state.hexdigest()


@pytest.mark.parametrize(
    "other",
    [
        {"a": torch.tensor([1.0, 2.5])},
        {"b": torch.tensor([1.0, 2.0])},
        {"a": torch.tensor([[1.0, 2.0]])},
        {"a": torch.tensor([1.0, 2.0], dtype=torch.float64)},
    ],
)
def test_the_digest_sees_every_difference(other):
    assert digest(other) != digest({"a": torch.tensor([1.0, 2.0])})


def test_the_digest_ignores_the_order_of_names():
    first, second = torch.rand(2), torch.rand(2)
    assert digest({"a": first, "b": second}) == digest({"b": second, "a": first})


def test_buffers_are_no_trained_values():
    tensors = {"a": torch.zeros(2), "mean": torch.zeros(3), "count": torch.tensor(1), "b": torch.zeros(1)}
    layout = Layout.of(tensors, {"mean", "count", "of another model"})
    assert layout.buffers == {"mean"}
    assert layout.trained.tolist() == [True, True, False, False, False, True]
    assert Layout.of(tensors).trained is None
