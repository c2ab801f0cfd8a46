"""Tensors survive Flower's records and its wire format to the bit."""

import pytest
import torch
from flwr.app import Array, ArrayRecord, Message, RecordDict
from flwr.common.serde import recorddict_from_proto, recorddict_to_proto

from fedsim.errors import RoundError
from fedsim.flower.identity import ensure_identity
from fedsim.flower.records import RAW, to_array, to_arrays, to_tensor, to_tensors
from fedsim.params import digest

DTYPES = [
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.uint8,
    torch.bool,
    torch.complex64,
]
SHAPES = [(), (0,), (3, 0, 2), (1,), (2, 3), (2, 3, 4, 5)]


def drawn(dtype, shape):
    noise = torch.randn(shape, generator=torch.Generator().manual_seed(1)) * 3
    return (noise > 0) if dtype == torch.bool else noise.to(dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_type_and_shape_survives(dtype, shape):
    tensor = drawn(dtype, shape)
    back = to_tensor(to_array(tensor))
    assert (back.dtype, back.shape) == (tensor.dtype, tensor.shape)
    assert digest({"t": back}) == digest({"t": tensor})


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_memory_formats_are_brought_to_canonical_order(dtype):
    images = drawn(dtype, (2, 3, 4, 5))
    for strange in (images.to(memory_format=torch.channels_last), images.transpose(1, 3), images[:, ::2]):
        back = to_tensor(to_array(strange))
        assert back.is_contiguous()
        assert torch.equal(back.view(torch.uint8), strange.contiguous().view(torch.uint8))


def test_special_values_keep_their_bits():
    odd = torch.tensor([float("nan"), float("inf"), -0.0, 1e-45])
    assert torch.equal(to_tensor(to_array(odd)).view(torch.int32), odd.view(torch.int32))


def test_tensors_that_require_gradients_are_detached_copies():
    weight = torch.nn.Parameter(torch.ones(2))
    back = to_tensor(to_array(weight))
    back.add_(1)
    assert weight.tolist() == [1.0, 1.0]
    assert not back.requires_grad


def test_names_and_order_survive_flowers_protobuf_and_inflation():
    tensors = {"b.weight": drawn(torch.bfloat16, (2, 2)), "a": torch.tensor(3), "": torch.zeros(0)}
    content = RecordDict({"arrays": to_arrays(tensors)})
    sent = recorddict_from_proto(recorddict_to_proto(content))
    back = to_tensors(sent.array_records["arrays"])
    assert list(back) == list(tensors)
    assert digest(back) == digest(tensors)


def test_an_array_inflates_from_its_chunks():
    array = to_array(drawn(torch.bfloat16, (5, 7)))
    inflated = Array.inflate(array.deflate(), children=dict(array.children))
    assert digest({"t": to_tensor(inflated)}) == digest({"t": to_tensor(array)})


def test_equal_tensors_have_equal_object_ids():
    ensure_identity()
    first, second = to_arrays({"a": torch.ones(3)}), to_arrays({"a": torch.ones(3)})
    assert first.object_id == second.object_id
    assert Message(RecordDict({"x": first}), 1, "train").content["x"] is first


def test_unknown_serialisations_are_named():
    with pytest.raises(RoundError, match="'float5'"):
        to_tensor(Array("float5", (1,), RAW, b"\0"))
    with pytest.raises(RoundError, match="cannot be read as a tensor"):
        to_tensor(Array("float32", (1,), "other", b"\0"))
    assert to_tensors(ArrayRecord()) == {}
