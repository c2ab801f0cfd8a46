"""The driver's connection to the process that starts its workers."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence

from fedsim.engine.nursery import NOTICE
from fedsim.engine.processes import ENVIRONMENT
from fedsim.errors import WorkerError

_BOOT = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from fedsim.engine.nursery import main; main(int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:])"
)
_BIRTH_LIMIT = 300.0  # seconds; the first birth waits for the nursery's imports


class NurseryLink:
    """Asks for workers and keeps account of how they ended."""

    def __init__(self, modules: Sequence[str]) -> None:
        """Start the nursery.

        Args:
            modules: that workers will need.
        """
        self._socket, theirs = socket.socketpair()
        with theirs:
            arguments = (json.dumps(sys.path), str(theirs.fileno()), str(os.getpid()), *modules)
            self._process = subprocess.Popen(
                [sys.executable, "-c", _BOOT, *arguments],
                stdin=subprocess.DEVNULL,
                env=os.environ | ENVIRONMENT,
                pass_fds=(theirs.fileno(),),
                process_group=0,  # Ctrl-C in the terminal reaches the driver alone
            )
        self._lives = True
        self._born: list[int] = []
        self._statuses: dict[int, int] = {}

    @property
    def lives(self) -> bool:
        """Whether it can start workers."""
        self._hear(0.0)
        return self._lives

    def bear(self, *files: int) -> int:
        """The process number of a new worker, which is given these files.

        Raises:
            WorkerError: the nursery is gone or does not answer.
        """
        try:
            self._socket.settimeout(_BIRTH_LIMIT)
            socket.send_fds(self._socket, [b"+"], list(files))
            while not self._born and self._lives:
                self._hear(_BIRTH_LIMIT)
        except OSError as error:
            raise WorkerError(f"Workers cannot be started: {error}") from error
        if not self._born:
            raise WorkerError("Workers cannot be started: the process that starts them has ended.")
        return self._born.pop()

    def status(self, process: int, patience: float = 0.0) -> int | None:
        """A worker's return code (below 0: the signal's number), or None after `patience` seconds.

        A worker whose nursery is gone has ended, too; its code is then -9, the signal sent to it.
        """
        end = time.monotonic() + patience
        while process not in self._statuses and self._lives:
            left = end - time.monotonic()
            self._hear(max(0.0, left))
            if left <= 0:
                break
        return self._statuses.get(process, None if self._lives else -signal.SIGKILL)

    def close(self) -> None:
        """End the nursery; it has no workers any more."""
        self._lives = False
        self._socket.close()
        self._process.kill()
        self._process.wait()

    def _hear(self, patience: float) -> None:
        """Take one notice into account, waiting up to `patience` seconds for it."""
        if not self._lives:
            return
        try:
            self._socket.settimeout(patience)
            notice = self._socket.recv(NOTICE.size, socket.MSG_WAITALL)
        except (BlockingIOError, TimeoutError):
            return
        except OSError:
            notice = b""
        if len(notice) < NOTICE.size:
            self._lives = False
            return
        born, process, status = NOTICE.unpack(notice)
        if born:
            self._born.append(process)
        else:
            self._statuses[process] = os.waitstatus_to_exitcode(status)
