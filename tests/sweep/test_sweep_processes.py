"""Sweeps in processes of their own: any number of jobs, and an end at any time."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

TROUBLE = """
[sweep.client]
fine = { epochs = 1 }
deadly = { kind = "plugins_of_a_sweep:Trouble", kill_in = 2, flag = "FLAG" }
last = { epochs = 2 }
"""


def rows(folder):
    return [json.loads(line) for line in (folder / "cells.jsonl").read_text().splitlines()]


def numbers(folder):
    """Everything but seconds."""
    return [{**row, "seconds": 0} for row in rows(folder)]


def test_two_jobs_find_what_one_finds_and_survive_a_child_s_death(write, play, folder, monkeypatch):
    monkeypatch.setattr("fedsim.sweep.command.usable_cores", lambda: 2)
    file = write(TROUBLE.replace("FLAG", ""))
    assert play(file, out="two", jobs=2) == 1
    found = rows(folder / "two")
    assert [row["status"] for row in found] == ["completed"] * 2 + ["failed"] * 2 + ["completed"] * 2
    assert found[2]["reason"] == "The process that played it was ended by SIGKILL."
    one = ["client=fine,last"]
    assert play(file, out="one", filters=one) == 0
    assert [row for row in numbers(folder / "one") if row["status"] == "completed"] == [
        row for row in numbers(folder / "two") if row["status"] == "completed"
    ]


def test_killed_in_the_middle_of_a_cell_and_continued(write, play, spawn, folder):
    flag = folder / "flag"
    file = write(TROUBLE.replace("FLAG", str(flag)))
    words = [str(file), "--out", str(folder / "out"), "--seeds", "0", "--jobs", "1"]
    killed = spawn(*words)
    assert killed.returncode == -9
    half = json.loads((folder / "out" / "cells.jsonl").read_text().splitlines()[0])
    assert half["status"] == "completed"
    runs = {path: path.read_bytes() for path in (folder / "out").glob("runs/*/*/rounds.jsonl")}
    assert sorted(text.count(b"\n") for text in runs.values()) == [1, 3]
    assert play(file, seeds=[0], resume=True) == 0
    for path, text in runs.items():  # kept, and gone on with
        assert path.read_bytes().startswith(text)
    assert play(file, out="whole", seeds=[0]) == 0
    assert numbers(folder / "out") == numbers(folder / "whole")


LONG = """
[sweep]
strategy = ["fedavg", "median"]
rounds = [3000]
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGKILL, -9), (signal.SIGTERM, 130), (signal.SIGINT, 130)]
)
def test_children_end_with_the_sweep_however_it_ends(write, folder, number, code):
    out = folder / "out"
    words = [sys.executable, "-m", "fedsim", "sweep", str(write(LONG)), "--out", str(out), "--jobs", "2"]
    process = subprocess.Popen(words, cwd=folder, start_new_session=True, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while lines(out) < 10:
        assert time.monotonic() < deadline
        time.sleep(0.2)
    os.kill(process.pid, number)
    assert process.wait(60) == code
    time.sleep(2)
    before = lines(out)
    time.sleep(2)
    assert lines(out) == before


def lines(folder):
    return sum(path.read_bytes().count(b"\n") for path in folder.glob("runs/*/*/rounds.jsonl"))
