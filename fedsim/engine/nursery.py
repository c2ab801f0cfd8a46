"""The process that starts workers: it imports what they need once and forks, which takes milliseconds.

It stays single-threaded and touches no device, so that forking is safe; where a module that it imported
started a thread, a worker is a fresh interpreter instead. It ends with the driver, and workers end with it.
"""

import atexit
import contextlib
import json
import os
import select
import signal
import socket
import struct
import sys
import threading
import traceback
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path
from typing import NoReturn

from fedsim.engine import worker

NOTICE = struct.Struct("!?ii")  # (born, process number, wait status)
_PARENT_CHECK_MS = 1000
_BOOT = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from fedsim.engine.worker import main; main(*map(int, sys.argv[2:]))"
)


def main(connection: int, parent: int, modules: Iterable[str]) -> None:
    """Start a worker for every pair of files received; tell of each birth and each end.

    Args:
        connection: descriptor of a Unix socket; the other end is the driver's.
        parent: the driver's process number.
        modules: imported beforehand, where that works.
    """
    for module in modules:
        with contextlib.suppress(Exception, SystemExit):  # the worker that needs it will say what is wrong
            import_module(module)
    os.set_inheritable(connection, False)
    wake, wakened = os.pipe()
    os.set_blocking(wakened, False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    signal.set_wakeup_fd(wakened)
    poll = select.poll()
    with socket.socket(fileno=connection) as driver, contextlib.suppress(ConnectionError):
        poll.register(driver, select.POLLIN)
        poll.register(wake, select.POLLIN)
        while os.getppid() == parent:
            for file, _ in poll.poll(_PARENT_CHECK_MS):
                if file == wake:
                    os.read(wake, 4096)
                    _tell_ends(driver)
                elif not _bear(driver, (wake, wakened)):
                    return


def _tell_ends(driver: socket.socket) -> None:
    with contextlib.suppress(ChildProcessError):
        while True:
            process, status = os.waitpid(-1, os.WNOHANG)
            if not process:
                return
            driver.sendall(NOTICE.pack(False, process, status))


def _bear(driver: socket.socket, own: tuple[int, int]) -> bool:
    """Start one worker; False if the driver is gone."""
    request, files, _, _ = socket.recv_fds(driver, 1, 2)
    if not request:
        return False
    nursery, forkable = os.getpid(), _threads() == 1
    process = os.fork()
    if process == 0:
        signal.set_wakeup_fd(-1)
        driver.close()
        for file in own:
            os.close(file)
        _become_worker(files, nursery, forkable)
    with contextlib.suppress(OSError):
        os.setpgid(process, process)
    for file in files:
        os.close(file)
    driver.sendall(NOTICE.pack(True, process, 0))
    return True


def _become_worker(files: list[int], nursery: int, forkable: bool) -> NoReturn:
    code = 1
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.setpgid(0, 0)
        if not forkable:
            for file in files:
                os.set_inheritable(file, True)
            arguments = (json.dumps(sys.path), *map(str, files), str(nursery))
            os.execv(sys.executable, [sys.executable, "-c", _BOOT, *arguments])
        worker.main(files[0], files[1], nursery)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            atexit._run_exitfuncs()
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _threads() -> int:
    """Threads of this process, including those that Python does not know of."""
    tasks = Path("/proc/self/task")
    return len(list(tasks.iterdir())) if tasks.exists() else threading.active_count()
