"""Packing Flower's records: exact, and a snapshot."""

import pickle

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from fedsim.flower.array_type import array_type, is_finite
from fedsim.flower.refusal import reason_to_refuse
from fedsim.flower.wire import pack, ship, unpack


def content(value=1.0):
    return RecordDict(
        {
            "a": ArrayRecord({"x": Array(np.full((2, 3), value)), "empty": Array(np.zeros((0, 2)))}),
            "m": MetricRecord({"one": 1, "many": [1.5, 2.5]}),
            "c": ConfigRecord({"flag": True, "text": ["a", "b"], "raw": b"\x01"}),
            "custom": ArrayRecord({"y": Array("bfloat16", (2,), "own.format", b"1234")}),
        }
    )


def test_round_trip_is_exact_also_through_pickle():
    assert unpack(pickle.loads(pickle.dumps(pack(content())))) == content()
    assert list(unpack(pack(content()))) == list(content())


def test_neither_side_can_change_the_other():
    original = content()
    packed = pack(original)
    copy = unpack(packed)
    copy["m"]["many"].append(3.5)
    copy["c"]["text"].clear()
    copy["a"]["x"] = Array(np.zeros(1))
    del copy["custom"]
    assert original == content() == unpack(packed)


def test_only_what_several_messages_carry_is_broadcast():
    shared, model = content(), ArrayRecord({"x": Array(np.ones(9))})
    mixed = [RecordDict({"model": model, "own": ConfigRecord({"i": i})}) for i in range(2)]
    lone = content(7.0)
    everything = [shared, mixed[0], lone, shared, mixed[1]]
    broadcast, packed = ship(everything)
    assert len(broadcast.contents) == 1
    assert packed[0] == packed[3] == 0
    bytes_of = {buffer.tobytes() for buffer in broadcast.buffers}
    assert model["x"].data in bytes_of
    assert lone["a"]["x"].data not in bytes_of
    buffers = [buffer.tobytes() for buffer in broadcast.buffers]
    opened = [unpack(broadcast.contents[p] if isinstance(p, int) else p, buffers) for p in packed]
    assert opened == everything


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", ">f4", "complex64"])
def test_finite_is_read_from_the_bytes(dtype):
    good = np.ones((3, 2), dtype=dtype, order="F")
    assert is_finite(Array(good))
    for bad in (np.nan, np.inf):
        array = good.copy()
        array[2, 1] = bad
        assert not is_finite(Array(array))
        assert not is_finite(Array("", (), "numpy.ndarray", Array(array).data))  # as older apps send it
    assert is_finite(Array(np.zeros((0, 4), dtype)))
    assert is_finite(Array(np.asarray(1, dtype)))


@pytest.mark.parametrize("array", [np.ones(2, np.int8), np.array([True]), np.array(["text"])])
def test_what_is_no_float_is_finite(array):
    assert is_finite(Array(array))


def test_the_type_of_an_array_without_one():
    data = Array(np.zeros((2, 1), np.int16)).data
    assert array_type(Array("", (), "numpy.ndarray", data)) == ("int16", (2, 1))


@pytest.mark.parametrize(
    ("metrics", "refused"),
    [
        ({"num-examples": 0}, True),
        ({"num-examples": -1.0}, True),
        ({"num-examples": float("nan")}, True),
        ({"num-examples": 1}, False),
        ({"other": 0}, False),
    ],
)
@pytest.mark.parametrize("kind", ["train", "evaluate", "train.named"])
def test_examples_decide_over_train_and_evaluate(kind, metrics, refused):
    reply = RecordDict({"metrics": MetricRecord(metrics)})
    assert bool(reason_to_refuse(kind, reply)) is refused
    assert not reason_to_refuse("query", reply)
