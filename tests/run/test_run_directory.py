import json

import pytest

from fedsim.errors import CheckpointError, ConfigError
from fedsim.run.directory import RunDirectory, fresh_folder, latest_folder, seed_folder


@pytest.fixture
def directory(tmp_path):
    made = RunDirectory(tmp_path / "run")
    made.create()
    return made


def test_rounds_are_lines_of_valid_json(directory):
    directory.append({"round": 1, "metrics": {"test_loss": float("nan")}})
    directory.append({"round": 2, "metrics": {"test_loss": float("inf")}})
    lines = directory.rounds.read_text().splitlines()
    assert [json.loads(line)["metrics"]["test_loss"] for line in lines] == [None, None]
    assert "NaN" not in directory.rounds.read_text()


def test_rewinding_cuts_later_rounds_and_half_a_line(directory):
    directory.append({"round": 1})
    length = directory.append({"round": 2})
    directory.append({"round": 3})
    with directory.rounds.open("ab") as stream:
        stream.write(b'{"round": 4, "met')
    assert [record["round"] for record in directory.rewind(length)] == [1, 2]
    assert directory.rounds.stat().st_size == length
    directory.append({"round": 3})
    assert [json.loads(line)["round"] for line in directory.rounds.read_text().splitlines()] == [1, 2, 3]


def test_a_shorter_file_than_the_checkpoint_says(directory):
    with pytest.raises(CheckpointError, match="has 0 bytes, but the checkpoint was written after 10"):
        directory.rewind(10)


def test_a_broken_line_before_the_checkpoint(directory):
    directory.rounds.write_bytes(b"nonsense\n")
    with pytest.raises(CheckpointError, match="is not JSON"):
        directory.rewind(9)


def test_a_broken_result(directory):
    directory.result.write_text("{")
    with pytest.raises(CheckpointError, match="is not JSON"):
        directory.read_result()


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
    assert latest_folder("x", None) == max(folders)


def test_nothing_to_resume(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CheckpointError, match="holds no run to resume"):
        latest_folder("x", None)
    with pytest.raises(CheckpointError, match="no such run to resume"):
        latest_folder("x", tmp_path / "gone")


def test_one_seed_lives_in_the_folder_and_several_in_their_own(tmp_path):
    assert seed_folder(tmp_path, 3, 1).path == tmp_path
    assert seed_folder(tmp_path, 3, 2).path == tmp_path / "seed-3"
