"""Which runs are played, in which order, and after what."""

from collections import deque
from pathlib import Path

from fedsim.sweep.cells import cells_of
from fedsim.sweep.file import read_sweep
from fedsim.sweep.plan import Task, tasks_of
from fedsim.sweep.play import Ended
from fedsim.sweep.progress import duration, remaining
from fedsim.sweep.schedule import play_all
from fedsim.sweep.shelf import Shelf


def task(name, clean=None, is_clean=False):
    return Task(name, Path("f"), None, Path(name), None if clean is None else Path(clean), is_clean)


class Paper:
    """A crew on paper: tasks end in the order of `order`, or first in first out."""

    def __init__(self, places, order=(), failing=()):
        self.places, self.order, self.failing = places, list(order), failing
        self.running, self.log = deque(), []

    def submit(self, given):
        assert len(self.running) < self.places
        self.running.append(given)
        self.log.append(f"+{given.name}")

    def ended(self):
        wanted = [one for name in self.order for one in self.running if one.name == name]
        given = wanted[0] if wanted else self.running[0]
        self.running.remove(given)
        self.log.append(f"-{given.name}")
        failed = given.name in self.failing
        return given, Ended("failed" if failed else "completed", "broke" if failed else None, 1.0)

    def close(self):
        pass


def test_a_run_waits_for_its_clean_run_while_others_go_on():
    tasks = [task("clean", is_clean=True), task("a", "clean"), task("b", "clean"), task("c")]
    crew = Paper(2, order=["c", "clean"])
    ended = [done.name for done, _ in play_all(tasks, crew)]
    assert crew.log == ["+clean", "+c", "-c", "-clean", "+a", "+b", "-a", "-b"]
    assert ended == ["c", "clean", "a", "b"]


def test_runs_whose_clean_run_failed_are_not_played_and_say_why():
    tasks = [task("clean", is_clean=True), task("a", "clean"), task("b")]
    crew = Paper(1, failing=["clean"])
    ended = {done.name: (how.status, how.reason) for done, how in play_all(tasks, crew)}
    assert ended == {
        "clean": ("failed", "broke"),
        "a": ("failed", "broke"),
        "b": ("completed", None),
    }
    assert "+a" not in crew.log


def test_a_clean_run_that_was_finished_before_holds_nobody_up():
    crew = Paper(1)
    assert [done.name for done, _ in play_all([task("a", "clean")], crew)] == ["a"]


ATTACKED = """
attack = { kind = "honest", malicious = 1, window = [1, 2] }
[sweep.attack]
none = "honest"
loud = { kind = "plugins_of_a_sweep:Patch", scale = 2.0 }
soft = { kind = "plugins_of_a_sweep:Patch", scale = 0.5 }
[sweep]
strategy = ["fedavg", "median"]
"""


def planned(path, out):
    import sys

    sys.path.append(str(path.parent))
    cells = cells_of(read_sweep(path))
    return tasks_of(path, Shelf.of(out, cells), cells, cells[0].experiment.seeds)


def test_attacks_on_one_defence_share_a_clean_run_and_it_comes_first(write, tmp_path):
    tasks = planned(write(ATTACKED), tmp_path / "out")
    clean = [one for one in tasks if one.is_clean]
    assert len(clean) == 4  # two strategies, two seeds
    assert len(tasks) == 2 * 2 * 2 + 4  # honest cells are the clean runs themselves
    for one in tasks:
        assert one.clean is None or tasks.index(one) > next(
            place for place, other in enumerate(tasks) if other.folder == one.clean
        )
    shared = [one.clean for one in tasks if one.clean is not None]
    assert sorted(shared) == sorted([one.folder for one in clean] * 2)


def test_seeds_come_one_after_the_other(write, tmp_path):
    tasks = planned(write("[sweep]\nrounds = [1, 2]\n"), tmp_path / "out")
    assert [(one.seed, one.experiment.rounds) for one in tasks] == [(0, 1), (0, 2), (1, 1), (1, 2)]


def test_cells_that_cannot_differ_in_a_number_share_a_run(write, tmp_path):
    tasks = planned(write('[sweep]\n"checkpoint.every" = [1, 2]\n'), tmp_path / "out")
    assert [one.seed for one in tasks] == [0, 1]


def test_folders_depend_on_all_that_touches_the_numbers(write, tmp_path):
    one = planned(write("[sweep]\nrounds = [1, 2]\n"), tmp_path)
    other = planned(write("[sweep]\nrounds = [2, 1, 3]\n"), tmp_path)
    folders = {(task.seed, task.experiment.rounds): task.folder for task in other}
    assert len(set(folders.values())) == 6
    assert all(folders[task.seed, task.experiment.rounds] == task.folder for task in one)


def test_time_to_go_is_the_mean_of_what_finished():
    assert remaining(0.0, 0, 8, 2) is None
    assert remaining(30.0, 3, 8, 2) == 40.0
    assert remaining(30.0, 3, 1, 4) == 10.0
    assert (duration(45.2), duration(720), duration(7500)) == ("45 s", "12 min", "2 h 05 min")
