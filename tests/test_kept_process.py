import os
import subprocess
import sys

import pytest

from fedsim.kept_process import kept_process


def test_an_exit_inside_raises_and_the_function_returns_afterwards():
    before = os._exit
    with pytest.raises(SystemExit, match=r"os._exit\(3\), which would have ended"), kept_process():
        os._exit(3)
    assert os._exit is before


def test_a_function_that_was_kept_ends_processes_again_outside():
    script = """
import os
from fedsim.kept_process import kept_process
with kept_process():
    kept = os._exit
kept(7)
"""
    assert subprocess.run([sys.executable, "-c", script], check=False, timeout=60).returncode == 7


def test_a_child_that_is_forked_inside_ends_as_it_says():
    script = """
import os
from fedsim.kept_process import kept_process
with kept_process():
    child = os.fork()
    if not child:
        os._exit(5)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    done = subprocess.run([sys.executable, "-c", script], check=False, timeout=60, capture_output=True)
    assert done.stdout == b"5\n"
