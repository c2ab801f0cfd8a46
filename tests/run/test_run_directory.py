import json
import os

import pytest

from fedsim.errors import CheckpointError, ConfigError
from fedsim.run.atomic_files import finite
from fedsim.run.directory import RunDirectory, fresh_folder, latest_folder, seed_folder


@pytest.fixture
def directory(tmp_path):
    made = RunDirectory(tmp_path / "run")
    claim = made.claim()
    made.create()
    yield made
    os.close(claim)


def test_rounds_are_lines_of_valid_json(directory):
    directory.append(finite({"round": 1, "metrics": {"test_loss": float("nan")}}))
    directory.append(finite({"round": 2, "metrics": {"test_loss": float("inf")}}))
    lines = directory.rounds.read_text().splitlines()
    assert [json.loads(line)["metrics"]["test_loss"] for line in lines] == [None, None]
    assert "NaN" not in directory.rounds.read_text()


def test_rewinding_cuts_later_rounds_and_half_a_line(directory):
    directory.append({"round": 1, "metrics": {}})
    length = directory.append({"round": 2, "metrics": {}})
    directory.append({"round": 3, "metrics": {}})
    with directory.rounds.open("ab") as stream:
        stream.write(b'{"round": 4, "met')
    assert [record["round"] for record in directory.rewind(length, 2)] == [1, 2]
    assert directory.rounds.stat().st_size == length
    directory.append({"round": 3})
    assert [json.loads(line)["round"] for line in directory.rounds.read_text().splitlines()] == [1, 2, 3]


def test_a_shorter_file_than_the_checkpoint_says(directory):
    with pytest.raises(CheckpointError, match="has 0 bytes, but the checkpoint was written after 10"):
        directory.rewind(10, 1)


def test_a_broken_line_before_the_checkpoint(directory):
    directory.rounds.write_bytes(b"nonsense\n")
    with pytest.raises(CheckpointError, match="is not JSON"):
        directory.rewind(9, 1)


@pytest.mark.parametrize(
    ("line", "rounds"), [("1", 1), ("{}", 1), ('{"round": 2, "metrics": {}}', 1), ("", 2)]
)
def test_lines_that_are_not_the_rounds_before_the_checkpoint(directory, line, rounds):
    directory.rounds.write_text(line)
    with pytest.raises(CheckpointError, match=f"does not hold the {rounds} rounds before the checkpoint"):
        directory.rewind(len(line), rounds)


def test_a_broken_result(directory):
    directory.result.write_text("{")
    with pytest.raises(CheckpointError, match="is not JSON"):
        directory.read_result()


@pytest.mark.parametrize("text", ["[]", "{}", "null", "3"])
def test_a_result_that_is_none(directory, text):
    directory.result.write_text(text)
    with pytest.raises(CheckpointError, match="is not the result of a run"):
        directory.read_result()


def test_one_run_at_a_time_in_a_folder(directory):
    with pytest.raises(ConfigError, match="another run is at work in this folder"):
        RunDirectory(directory.path).claim()
    other = RunDirectory(directory.path.parent / "other")
    os.close(other.claim())
    (other.path / ".checkpoint.safetensors.99.partial").write_text("of a killed process")
    os.close(other.claim())
    assert not any(other.path.iterdir())


def test_a_folder_that_cannot_be(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(ConfigError, match="cannot be the folder of a run"):
        RunDirectory(tmp_path / "file" / "run").claim()


def test_a_used_folder_is_never_taken(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(ConfigError, match="already holds something"):
        fresh_folder("x", tmp_path)
    with pytest.raises(ConfigError, match="already holds something"):
        fresh_folder("x", tmp_path / "file")
    assert fresh_folder("x", tmp_path / "new") == tmp_path / "new"


def test_two_runs_in_one_second_have_two_folders(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folders = [fresh_folder("x", None) for _ in range(3)]
    assert len(set(folders)) == 3
    for folder in folders[:2]:
        (folder / "rounds.jsonl").touch()
    assert latest_folder("x", 1, None) == folders[1]  # the third holds nothing


def test_nothing_to_resume(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for out in (None, tmp_path, tmp_path / "gone"):
        with pytest.raises(CheckpointError, match="no such run to resume"):
            latest_folder("x", 1, out)


def test_a_run_of_one_seed_is_not_resumed_as_one_of_several(tmp_path):
    for folder, seeds in ((tmp_path / "one", 1), (tmp_path / "more" / "seed-0", 2)):
        folder.mkdir(parents=True)
        (folder / "rounds.jsonl").touch()
        right = tmp_path / ("one" if seeds == 1 else "more")
        assert latest_folder("x", seeds, right) == right
        with pytest.raises(CheckpointError, match="no such run to resume, of"):
            latest_folder("x", 3 - seeds, right)


def test_one_seed_lives_in_the_folder_and_several_in_their_own(tmp_path):
    assert seed_folder(tmp_path, 3, 1).path == tmp_path
    assert seed_folder(tmp_path, 3, 2).path == tmp_path / "seed-3"
