"""Flower's own processes for one run on this machine: a SuperLink, SuperNodes, and their end.

Each has a FLWR_HOME and a port of its own, on the loopback interface only, so that other SuperLinks of this
machine are neither used nor disturbed. Children detach themselves into sessions of their own; they are
found by their parents and ended by their ids.
"""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from fedsim.errors import WorkerError

HOST = "127.0.0.1"
STARTUP = 60.0  # seconds that a SuperLink may take to answer
GRACE = 8.0  # seconds between asking a process to end and ending it


def free_port() -> int:
    """A port of the loopback interface that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def environment(home: Path, search: Iterable[Path]) -> dict[str, str]:
    """Variables for Flower's processes.

    Args:
        home: becomes FLWR_HOME.
        search: folders where plugins of dotted paths lie.
    """
    scripts = str(Path(sys.executable).parent)
    variables = dict(os.environ)
    variables["FLWR_HOME"] = str(home)
    variables["FLWR_TELEMETRY_ENABLED"] = "0"
    variables["FLWR_DISABLE_UPDATE_CHECK"] = "1"
    variables["PYTHONUNBUFFERED"] = "1"
    # Flower starts its helpers by name; and several processes with many threads each starve small machines.
    variables["PATH"] = os.pathsep.join([scripts, variables.get("PATH", "")])
    variables["OMP_NUM_THREADS"] = "1"
    known = [entry for entry in variables.get("PYTHONPATH", "").split(os.pathsep) if entry]
    variables["PYTHONPATH"] = os.pathsep.join([*map(str, search), *known])
    return variables


def start(command: Sequence[str], variables: Mapping[str, str], log: Path) -> subprocess.Popen[bytes]:
    """Start a process in a session of its own, so that Ctrl-C reaches it only through `stop`."""
    with log.open("wb") as output:
        return subprocess.Popen(
            [str(Path(sys.executable).parent / command[0]), *command[1:]],
            env=dict(variables),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def wait_for_superlink(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    """Return once the SuperLink answers.

    Raises:
        WorkerError: it ended, or does not answer in time; with the end of its log.
    """
    end = time.monotonic() + STARTUP
    while time.monotonic() < end:
        if process.poll() is not None:
            raise WorkerError(f"The SuperLink ended with code {process.returncode}:\n{tail(log)}")
        with (
            contextlib.suppress(OSError, urllib.error.URLError),
            urllib.request.urlopen(f"http://{HOST}:{port}/health", timeout=1) as response,
        ):
            if response.status == 200:
                return
        time.sleep(0.1)
    raise WorkerError(f"The SuperLink did not answer on port {port} within {STARTUP:.0f} s:\n{tail(log)}")


def tail(log: Path, lines: int = 20) -> str:
    """The last lines of a log."""
    return "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:])


def stop(processes: Iterable[subprocess.Popen[bytes]]) -> None:
    """End processes and everything they started, by their ids; first politely.

    Takes at most twice `GRACE` seconds, in which an impatient second Ctrl-C has no effect: it would leave
    them behind.
    """
    with _uninterrupted():
        _stop(list(processes))


@contextlib.contextmanager
def _uninterrupted() -> Iterator[None]:
    """Ignore signals that ask this process to end."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _stop(roots: Sequence[subprocess.Popen[bytes]]) -> None:
    everybody = {pid for root in roots for pid in (root.pid, *_descendants(root.pid))}
    for root in roots:
        if root.poll() is None:
            root.terminate()
    end = time.monotonic() + GRACE
    while time.monotonic() < end and any(map(_alive, everybody)):
        for root in roots:
            root.poll()  # collects an ended child, which would count as alive otherwise
        time.sleep(0.1)
    for pid in filter(_alive, everybody):
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)
    for root in roots:
        root.wait()
    while time.monotonic() < end + GRACE and any(map(_alive, everybody)):
        time.sleep(0.02)


def _descendants(pid: int) -> list[int]:
    """Children, their children, and so on, as the process table shows them now."""
    listed = subprocess.run(["ps", "-A", "-o", "pid=,ppid="], capture_output=True, text=True, check=False)
    children: dict[int, list[int]] = {}
    for line in listed.stdout.splitlines():
        child, parent = map(int, line.split())
        children.setdefault(parent, []).append(child)
    found, waiting = [], [pid]
    while waiting:
        below = children.get(waiting.pop(), [])
        found += below
        waiting += below
    return found


def _alive(pid: int) -> bool:
    """Is there such a process, other than one that ended and waits to be collected by its parent?"""
    with contextlib.suppress(OSError):
        state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        return state.rpartition(")")[2].split()[0] not in ("Z", "X")
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
