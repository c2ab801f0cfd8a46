"""The side of a benchmark that sits in a system's own process: JSON lines in, JSON lines out.

    {"do": "rounds", "count": 5}          -> {"ms": [12.1, ...]}
    {"do": "model", "path": "model.npy"}  -> {"saved": true}
    end of input                          -> the process ends

The first round is played unasked; its line is {"ready": true, "ms": [...]}. Only Python and NumPy here:
peers run it in environments of their own.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np


class Conductor:
    """Says when a round is due, and tells how long it took."""

    def __init__(self) -> None:
        """Keep standard output for answers; what the frameworks print goes to standard error."""
        self._out = os.fdopen(os.dup(1), "w", encoding="utf-8")
        os.dup2(2, 1)
        self._left, self._times, self._begun, self._ready = 1, [], 0.0, False
        self.vector: Callable[[], Any] = lambda: np.zeros(0)

    def wants_round(self) -> bool:
        """Blocks until a round is due (yes) or nobody asks any more (no); the round's clock starts here."""
        while self._left == 0:
            if self._times:
                self._say({"ms": self._times} | ({} if self._ready else {"ready": True}))
                self._times, self._ready = [], True
            line = sys.stdin.readline()
            if not line:
                return False
            self._obey(json.loads(line))
        self._begun = time.perf_counter()
        return True

    def round_done(self) -> None:
        """The round's clock stops here."""
        self._times.append(1000 * (time.perf_counter() - self._begun))
        self._left -= 1

    def _obey(self, ask: dict[str, Any]) -> None:
        if ask["do"] == "rounds":
            self._left = ask["count"]
        elif ask["do"] == "model":
            np.save(ask["path"], np.asarray(self.vector()))
            self._say({"saved": True})

    def _say(self, answer: dict[str, Any]) -> None:
        print(json.dumps(answer), file=self._out, flush=True)
