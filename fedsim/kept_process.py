"""Somebody else's code that ends the whole process: inside `kept_process`, `os._exit` raises instead.

A process that ends by `os._exit(0)` in the middle of a run looks as if the run had succeeded. `sys.exit` is
an exception already; a signal, or an exit in another language, cannot be caught here.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn


@contextmanager
def kept_process() -> Iterator[None]:
    """Let `os._exit` raise `SystemExit` in this process, and do what it says in children."""
    end, owner, inside = os._exit, os.getpid(), True

    def refuse(status: int) -> NoReturn:
        if inside and os.getpid() == owner:
            raise SystemExit(f"os._exit({status}), which would have ended the whole process")
        end(status)

    os._exit = refuse
    try:
        yield
    finally:
        inside = False  # a module may have kept the function
        os._exit = end
