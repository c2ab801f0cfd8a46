"""Plays one task to its end, in this process; whatever goes wrong becomes a reason."""

import time
from dataclasses import dataclass

from fedsim.errors import FedsimError
from fedsim.run.outcome import Silent
from fedsim.run.runner import play_clean_run, run
from fedsim.run.threads import one_thread
from fedsim.run.transports import LocalTransport
from fedsim.sweep.plan import Task


@dataclass(frozen=True)
class Ended:
    """How a task ended.

    Attributes:
        status: as in result.json.
        reason: why it did not complete.
        seconds: that it took.
    """

    status: str
    reason: str | None
    seconds: float


def play(task: Task) -> Ended:
    """Run a task, going on from its checkpoint where it has one.

    Raises:
        KeyboardInterrupt: it was stopped, and can be continued.
    """
    start = time.monotonic()
    try:
        status, reason = _clean(task) if task.is_clean else _run(task)
    except FedsimError as error:
        status, reason = "failed", str(error)
    except Exception as error:
        status, reason = "failed", f"{type(error).__name__}: {error}"
    return Ended(status, reason, time.monotonic() - start)


def _clean(task: Task) -> tuple[str, str | None]:
    with one_thread():
        transport = LocalTransport(task.file.resolve())
        any_code = not task.anew
        play_clean_run(task.experiment, task.seed, task.folder, transport, Silent(), any_code=any_code)
    return "completed", None


def _run(task: Task) -> tuple[str, str | None]:
    transport = LocalTransport(task.file.resolve())
    (outcome,) = run(
        task.experiment, task.folder, federation_of=transport, resume=not task.anew, clean=task.clean
    )
    return outcome.status, outcome.result["reason"]
