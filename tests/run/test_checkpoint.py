import json
import os

import pytest
import torch

from fedsim.errors import CheckpointError
from fedsim.run.checkpoint import Checkpoint, RunState, load, require_same, save


def checkpoint(**changes):
    state = RunState(
        round=7,
        vector=torch.randn(5, generator=torch.Generator().manual_seed(0), dtype=torch.float64),
        integers={"b/count": torch.tensor(3)},
        strategy={"m": torch.arange(3, dtype=torch.bfloat16), "a": torch.tensor(True)},
        downlink={"c": torch.ones(2)},
    )
    known = {
        "seed": 4,
        "digest": "abc",
        "history": 123,
        "memory": {2: {"z": torch.ones(1), "a": torch.zeros(0)}, 5: {}},
    }
    return Checkpoint(state=state, **(known | changes))


def same(found, wanted):
    assert list(found) == list(wanted)
    for name, tensor in wanted.items():
        assert found[name].dtype == tensor.dtype
        assert torch.equal(found[name], tensor)


def test_everything_comes_back_with_types_and_order(tmp_path):
    path, wanted = tmp_path / "c.safetensors", checkpoint(files={9: "000009-1.safetensors"})
    save(path, wanted)
    found = load(path)
    assert (found.seed, found.digest, found.history, found.state.round) == (4, "abc", 123, 7)
    assert found.files == wanted.files
    assert torch.equal(found.state.vector, wanted.state.vector)
    for group in ("integers", "strategy", "downlink", "attack"):
        same(getattr(found.state, group), getattr(wanted.state, group))
    assert set(found.memory) == {2, 5}
    for partition in (2, 5):
        same(found.memory[partition], wanted.memory[partition])


def test_the_old_checkpoint_stays_when_writing_fails(tmp_path, monkeypatch):
    path = tmp_path / "c.safetensors"
    save(path, checkpoint())

    def fail(descriptor):
        raise OSError("disk full")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="disk full"):
        save(path, checkpoint(seed=5))
    assert load(path).seed == 4


def test_views_and_shared_memory_can_be_saved(tmp_path):
    path, base = tmp_path / "c.safetensors", torch.arange(6.0)
    state = RunState(round=1, vector=base, integers={}, strategy={"x": base[:3], "y": base.view(2, 3).t()})
    save(path, Checkpoint(state=state, seed=0, digest="", history=0))
    assert torch.equal(load(path).state.strategy["y"], base.view(2, 3).t())


def test_no_file(tmp_path):
    with pytest.raises(CheckpointError, match="no checkpoint here to resume from"):
        load(tmp_path / "c.safetensors")


@pytest.mark.parametrize("content", [b"", b"not a checkpoint", b"\x80\x04K\x01."])
def test_foreign_files(tmp_path, content):
    path = tmp_path / "c.safetensors"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match="not a checkpoint of fedsim"):
        load(path)


def test_half_a_file(tmp_path):
    path = tmp_path / "c.safetensors"
    save(path, checkpoint())
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(CheckpointError, match="not a checkpoint of fedsim"):
        load(path)


def test_a_single_changed_bit_is_noticed_wherever_it_is(tmp_path):
    path = tmp_path / "c.safetensors"
    save(path, checkpoint())
    whole = path.read_bytes()
    start = 8 + int.from_bytes(whole[:8], "little")  # of the tensors; before it lies the header
    round_at = whole.index(b"round") + len(b'round\\": ')
    assert whole[round_at : round_at + 1] == b"7"
    for place in (*range(start, len(whole)), round_at):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(CheckpointError, match="was damaged or changed after it was written"):
            load(path)


def test_another_experiment_or_seed(tmp_path):
    require_same(checkpoint(), "abc", 4, tmp_path)
    with pytest.raises(CheckpointError, match="belongs to experiment abc, but the file now reads def"):
        require_same(checkpoint(), "def", 4, tmp_path)
    with pytest.raises(CheckpointError, match="belongs to seed 4, asked to resume seed 5"):
        require_same(checkpoint(), "abc", 5, tmp_path)


@pytest.mark.parametrize(
    "change", [{"round": "x"}, {"format": 1}, {"order": []}, {"memory": 3}, {"files": []}, {"history": None}]
)
def test_a_header_that_is_not_ours(tmp_path, monkeypatch, change):
    path = tmp_path / "c.safetensors"
    dumps = json.dumps
    monkeypatch.setattr(json, "dumps", lambda header: dumps(header | change))
    save(path, checkpoint())
    with pytest.raises(CheckpointError, match=r"not a checkpoint of fedsim|has format 1|was damaged"):
        load(path)


def test_what_safetensors_says_of_a_folder_that_is_gone_is_an_error_of_the_system(tmp_path, monkeypatch):
    monkeypatch.setattr("pathlib.Path.mkdir", lambda *arguments, **options: None)
    with pytest.raises(OSError, match=r"gone/c\.safetensors: "):
        save(tmp_path / "gone" / "c.safetensors", checkpoint())
