import numpy as np
import pytest
import torch

from fedsim.engine.arena import SMALLEST_FILE, place, view
from fedsim.engine.share import address_of, empty_chunk, pack, unpack

BASE = torch.arange(24, dtype=torch.float32).reshape(4, 6)
TABLE = np.arange(24.0).reshape(4, 6)


def through_file(value):
    arena = place(pack(value))
    try:
        return unpack(view(arena.placed, arena.files[0]) if arena.files else arena.placed.parcel)
    finally:
        arena.close()


@pytest.mark.parametrize(
    "tensor",
    [
        BASE,
        BASE.T,
        BASE[:, 1:3],
        BASE[1:3],
        BASE[:, :1].expand(4, 5),
        BASE.to(torch.bfloat16),
        BASE.to(torch.complex64),
        BASE > 3,
        torch.tensor(3, dtype=torch.int64),
        torch.empty(0, 7),
        torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last),
        BASE.clone().requires_grad_(),
        torch.nn.Parameter(BASE.clone()),
        BASE.to_sparse(),
        BASE.to(torch.complex64).conj(),
    ],
    ids=str,
)
def test_tensors_come_back_as_they_were(tensor):
    back = unpack(pack(tensor))
    assert type(back) is type(tensor)
    assert (back.dtype, back.shape, back.requires_grad) == (tensor.dtype, tensor.shape, tensor.requires_grad)
    torch.testing.assert_close(back, tensor, rtol=0, atol=0)


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
def test_sparse_matrices_leave_their_parts_out_of_the_pickle():
    matrix = BASE.to_sparse_csr()
    parcel = pack(matrix)
    assert (
        parcel.nbytes == matrix.values().nbytes + matrix.crow_indices().nbytes + matrix.col_indices().nbytes
    )
    torch.testing.assert_close(unpack(parcel).to_dense(), BASE, rtol=0, atol=0)


def test_dense_tensors_keep_their_strides():
    images = torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last)
    assert unpack(pack(images)).stride() == images.stride()


@pytest.mark.parametrize(
    "array",
    [
        TABLE,
        TABLE.T,
        TABLE[:, 1:3],
        TABLE[::-1],
        np.asfortranarray(TABLE),
        np.array(2.5),
        np.empty((0, 3)),
        np.array(["one", "three"]),
        np.array(["2001-01-01"], dtype="datetime64[D]"),
        np.array([{"any": "object"}], dtype=object),
        np.array([(1, 2.0)], dtype=[("a", "i4"), ("b", "f8")]),
        np.broadcast_to(np.arange(3), (2, 3)),
    ],
    ids=str,
)
def test_arrays_come_back_as_they_were(array):
    back = unpack(pack(array))
    assert (back.dtype, back.shape) == (array.dtype, array.shape)
    np.testing.assert_array_equal(back, array)


def test_views_of_one_storage_are_stored_once_and_still_overlap():
    whole = torch.arange(1000, dtype=torch.float64)
    value = {"whole": whole, "part": whole[10:20], "again": whole, "numpy": whole.numpy()[500:]}
    parcel = pack(value)
    assert parcel.nbytes == whole.nbytes
    back = unpack(parcel)
    assert back["again"] is back["whole"]
    assert back["part"].data_ptr() == back["whole"].data_ptr() + 80
    assert back["numpy"].__array_interface__["data"][0] == back["whole"].data_ptr() + 4000


def test_views_that_overlap_only_each_other_form_one_chunk():
    whole = torch.arange(1000)
    left, right = whole[100:300], whole[200:400]
    parcel = pack((left, right))
    assert len(parcel.chunks) == 1
    assert parcel.nbytes == 300 * 8
    back = unpack(parcel)
    torch.testing.assert_close(back[1], right)
    assert back[0][100:].data_ptr() == back[1].data_ptr()


def test_a_small_view_does_not_drag_its_storage_along():
    assert pack(torch.zeros(100_000)[5:7]).nbytes == 8


@pytest.mark.parametrize("residue", [0, 4, 16, 60])
def test_addresses_keep_their_residue_in_the_file(residue):
    memory = empty_chunk(2 * SMALLEST_FILE, residue)
    memory[:] = 7
    back = through_file([memory, torch.ones(100_000)])
    assert address_of(back[0]) % 64 == residue
    assert back[1].data_ptr() % 64 == 0
    np.testing.assert_array_equal(back[0], memory)


def test_what_is_packed_is_not_copied():
    whole = torch.arange(1000)
    back = unpack(pack(whole))
    assert back.data_ptr() == whole.data_ptr()


def test_a_writer_changes_neither_the_original_nor_another_view():
    original = torch.zeros(SMALLEST_FILE)
    arena = place(pack(original))
    first, second = (unpack(view(arena.placed, arena.files[0])) for _ in range(2))
    arena.close()
    first += 1
    assert first.sum() == SMALLEST_FILE
    assert second.sum() == original.sum() == 0


def test_large_pickles_without_arrays_go_to_the_file_as_well():
    words = [str(number) for number in range(50_000)]
    arena = place(pack(words))
    assert arena.placed.parcel.blob == b""
    assert unpack(view(arena.placed, arena.files[0])) == words
    arena.close()


def test_code_that_a_worker_cannot_import_travels_by_value():
    def offset(value):
        return value + 1

    class Box:
        content = torch.ones(3)

    function, box = unpack(pack((offset, Box)))
    assert function(1) == 2
    assert box is Box  # in the same process, one class stays one class


def test_what_cannot_be_pickled_says_so():
    with pytest.raises(TypeError, match="generator"):
        pack(x for x in ())
