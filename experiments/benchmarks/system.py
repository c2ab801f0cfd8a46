"""A system under test in a process of its own, asked in JSON lines; see `peers.conductor`."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from queue import Empty, Queue
from threading import Thread
from typing import Any

import numpy as np
from memory import peak_mb
from workload import Variant

HERE = Path(__file__).resolve().parent
PATIENCE = 180.0  # seconds for one answer
GRACE = 30.0  # seconds to end by itself


class MissingSystem(Exception):
    """It cannot be started, or it ended; the message says why."""


@dataclass(frozen=True)
class Contender:
    """Who plays: a label such as `T2 in-process 2` or `flower`, a tier for ours, and how to start it.

    Attributes:
        label: of the row.
        tier: of ours; None for a peer.
        module: under peers/.
        words: after the plan's folder on the command line.
        engine: the `[engine]` table of ours.
        python: the interpreter; None: none was given.
    """

    label: str
    tier: str | None
    module: str
    words: tuple[str, ...] = ()
    engine: Mapping[str, Any] = field(default_factory=dict)
    python: str | None = sys.executable


class System:
    """A running contender."""

    def __init__(
        self, contender: Contender, variant: Variant, plan: Path, work: Path, patience: float = PATIENCE
    ) -> None:
        """Start it and play its first round.

        Args:
            contender: who.
            variant: of the plan.
            plan: its folder.
            work: a folder of the system's own, made here.
            patience: seconds for one answer.

        Raises:
            MissingSystem: no interpreter was given, or it did not come so far.
        """
        if contender.python is None:
            raise MissingSystem(f"no interpreter given: --{contender.module.split('_')[0]}-python PATH")
        self.contender, self.times, self.peak = contender, [], 0.0
        self._patience = patience
        work.mkdir(parents=True)
        self._log, self._model = work / "log.txt", work / "model.npy"
        begun = time.perf_counter()
        self._process = _start(contender, variant, plan, work, self._log)
        self._answers: Queue[str] = Queue()
        Thread(target=self._listen, daemon=True).start()
        try:
            self.first_round = self._answer()["ms"][0]
        except MissingSystem:
            self.kill()
            raise
        self.startup = time.perf_counter() - begun

    def rounds(self, count: int) -> None:
        """Play and time `count` rounds."""
        self.times.append(self._ask({"do": "rounds", "count": count})["ms"])
        self.peak = max(self.peak, peak_mb(self._process.pid) or 0.0)

    def model(self) -> Any:
        """[d], as it is now."""
        self._ask({"do": "model", "path": str(self._model)})
        return np.load(self._model)

    def dismiss(self) -> None:
        """Tell it that nothing more will be asked; it ends by itself."""
        if self._process.stdin:
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.close()

    def close(self) -> None:
        """Wait until it has ended, or end it and what it started."""
        self.dismiss()
        try:
            self._process.wait(GRACE)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """End it and what it started, at once."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self.dismiss()

    def _ask(self, words: Mapping[str, Any]) -> dict[str, Any]:
        if self._process.stdin is None:
            raise MissingSystem("it has no input")
        try:
            self._process.stdin.write(json.dumps(words) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError as error:
            raise MissingSystem(self._last_words()) from error
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        try:
            line = self._answers.get(timeout=self._patience)
        except Empty:
            raise MissingSystem(f"no answer in {self._patience:g} s") from None
        if not line:
            raise MissingSystem(self._last_words())
        try:
            return dict(json.loads(line))
        except ValueError:
            raise MissingSystem(f"it answered {line.strip()[:80]!r}") from None

    def _listen(self) -> None:
        for line in self._process.stdout or ():
            self._answers.put(line)
        self._answers.put("")

    def _last_words(self) -> str:
        lines = [line for line in self._log.read_text(errors="replace").splitlines() if line.strip()]
        return f"ended: {lines[-1].strip() if lines else 'no message'}"


def _start(
    contender: Contender, variant: Variant, plan: Path, work: Path, log: Path
) -> subprocess.Popen[str]:
    words = contender.words
    if contender.tier is not None:
        asked = {"engine": dict(contender.engine), "variant": asdict(variant), "out": str(work / "run")}
        words = (json.dumps(asked),)
    command = [str(contender.python), "-m", f"peers.{contender.module}", str(plan), *words]
    try:
        with log.open("w") as errors:
            return subprocess.Popen(
                command,
                cwd=work,
                env=environment_of(_threads(contender.words)),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,
            )
    except OSError as error:
        raise MissingSystem(f"{contender.label}: {error.strerror}") from error


def environment_of(threads: str) -> dict[str, str]:
    """Of a system's process: this folder's modules, so many threads, and no telemetry."""
    return os.environ | {
        "PYTHONPATH": str(HERE),
        "FLWR_TELEMETRY_ENABLED": "0",
        "RAY_USAGE_STATS_ENABLED": "0",
        "OMP_NUM_THREADS": threads,
    }


def _threads(words: Sequence[str]) -> str:
    return words[0] if words else "1"
