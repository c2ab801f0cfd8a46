"""What a worker tells the driver, and the loop that tells it."""

import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from fedsim.engine.protocols import Handler, Task
from fedsim.engine.share import Parcel, pack


@dataclass(frozen=True)
class Trouble:
    """An exception as text: one line, and all of it."""

    message: str
    traceback: str = ""

    @classmethod
    def of(cls, error: BaseException, prefix: str = "") -> "Trouble":
        """The text of an exception that is being handled."""
        return cls(prefix + one_line(error), "".join(traceback.format_exception(error)))


@dataclass(frozen=True)
class Ready:
    """The worker holds its data and waits for work."""


@dataclass(frozen=True)
class Refused:
    """The worker could not set itself up, and ends."""

    trouble: Trouble


@dataclass(frozen=True)
class Done:
    """The next task of the call is complete.

    Attributes:
        results: one packed result, or the trouble of packing it, per item.
        last: it was the last task of the call.
    """

    results: tuple[Parcel | Trouble, ...]
    last: bool


@dataclass(frozen=True)
class Raised:
    """The next task of the call raised as a whole; the call ends here."""

    trouble: Trouble


@dataclass(frozen=True)
class Died:
    """The worker's process is gone; seen from the driver."""

    trouble: Trouble


Event = Ready | Refused | Done | Raised | Died


def one_line(error: BaseException) -> str:
    """The exception's type and the first line of its text."""
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0]}" if text else type(error).__name__


def perform(
    handler: Handler, broadcast: Any, tasks: Sequence[Task], wrap: Callable[[Parcel], Parcel] = lambda x: x
) -> Iterator[Event]:
    """Run the tasks of one call in order, telling of each as it ends; stops at the first that raises.

    Args:
        handler: the worker's.
        broadcast: goes to every task.
        tasks: of this call.
        wrap: what the transport needs done to a packed result.
    """
    for left, task in zip(range(len(tasks) - 1, -1, -1), tasks, strict=True):
        try:
            results = run_checked(handler, broadcast, task)
        except BaseException as error:  # a client's sys.exit must not take the worker along
            yield Raised(Trouble.of(error))
            return
        yield Done(tuple(_packed(result, wrap) for result in results), last=left == 0)
        del results


def run_checked(handler: Handler, broadcast: Any, task: Task) -> list[Any]:
    """The handler's results, one per item.

    Raises:
        ValueError: there are more or fewer than items.
        Exception: whatever the handler raises.
    """
    results = list(handler.run(broadcast, task))
    if len(results) != len(task.items):
        raise ValueError(f"The handler returned {len(results)} results for {len(task.items)} items.")
    return results


def _packed(result: Any, wrap: Callable[[Parcel], Parcel]) -> Parcel | Trouble:
    try:
        return wrap(pack(result))
    except Exception as error:
        return Trouble.of(error, "The result cannot be pickled: ")
