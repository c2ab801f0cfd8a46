import pytest
import torch

from fedsim.errors import CheckpointError
from fedsim.run.private_store import PrivateStore


def tensors(value, size=4):
    return {"a/b": torch.full((size,), float(value)), "n": torch.tensor(value)}


def same(found, wanted):
    assert list(found) == list(wanted)
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)


SIZE = 4 * 4 + 8  # bytes of `tensors`


def test_what_is_put_comes_back_and_others_are_unknown(tmp_path):
    store = PrivateStore(tmp_path / "private")
    store.put(3, tensors(1))
    same(store.get(3), tensors(1))
    assert store.get(2) is None
    assert not (tmp_path / "private").exists()


def test_an_empty_state_is_a_state(tmp_path):
    store = PrivateStore(tmp_path)
    store.put(0, {})
    assert store.get(0) == {}


def test_above_the_limit_the_oldest_go_to_disk(tmp_path):
    store = PrivateStore(tmp_path, limit=2 * SIZE)
    for partition in range(5):
        store.put(partition, tensors(partition))
    memory, files = store.snapshot()
    assert set(memory) == {3, 4}
    assert set(files) == {0, 1, 2}
    for partition in range(5):
        found = store.get(partition)
        assert {name: found[name].tolist() for name in found} == {
            name: value.tolist() for name, value in tensors(partition).items()
        }


def test_a_stored_tensor_does_not_keep_its_buffer_or_follow_it(tmp_path):
    store, buffer = PrivateStore(tmp_path), torch.zeros(1000)
    store.put(0, {"w": buffer[:2]})
    buffer += 1
    found = store.get(0)["w"]
    assert found.tolist() == [0.0, 0.0]
    assert found.untyped_storage().nbytes() == 8


def test_files_of_a_checkpoint_survive_until_the_next(tmp_path):
    store = PrivateStore(tmp_path, limit=0)
    store.put(0, tensors(1))
    memory, files = store.snapshot()
    store.put(0, tensors(2))
    again = PrivateStore(tmp_path, limit=0)
    again.restore(memory, files)
    assert again.get(0)["n"] == 1
    store.sweep()
    assert len(list(tmp_path.iterdir())) == 1
    assert store.get(0)["n"] == 2


def test_a_restored_store_writes_no_file_twice(tmp_path):
    store = PrivateStore(tmp_path, limit=0)
    store.put(0, tensors(1))
    again = PrivateStore(tmp_path, limit=0)
    again.restore(*store.snapshot())
    again.put(0, tensors(2))
    assert store.get(0)["n"] == 1


def test_a_changed_or_cut_file_is_said(tmp_path):
    store = PrivateStore(tmp_path, limit=0)
    store.put(4, tensors(1))
    memory, files = store.snapshot()
    (path,) = tmp_path.iterdir()
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(CheckpointError, match="private state of client 4 was damaged or changed"):
        PrivateStore(tmp_path).restore(memory, files)
    path.write_bytes(whole[:-5])
    with pytest.raises(CheckpointError, match="cannot be read"):
        PrivateStore(tmp_path).restore(memory, files)


def test_a_lost_file_is_said(tmp_path):
    with pytest.raises(CheckpointError, match="private state of client 4 is gone"):
        PrivateStore(tmp_path).restore({}, {4: "000004-000000001.safetensors"})
