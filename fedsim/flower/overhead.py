"""Where the time between a message and its reply goes, from what clients tell of their work."""

import os
import time
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache

from flwr.app import ConfigRecord, RecordDict

RECORD = "work"


@dataclass
class Work:
    """One answer's share, in seconds.

    Attributes:
        computing: in the training code.
        converting: of records to tensors and back.
    """

    computing: float = 0.0
    converting: float = 0.0


def told(work: Work) -> ConfigRecord:
    """As a record of the reply; names the process, whose answers follow one another."""
    process = _process(os.getpid())
    return ConfigRecord({"process": process, "computing": work.computing, "converting": work.converting})


@cache
def _process(number: int) -> str:
    """Tells processes of several machines apart, and forks of one process."""
    return f"{number}-{time.time_ns()}"


def overhead(total: float, packing: float, replies: Iterable[RecordDict]) -> dict[str, float]:
    """Seconds of an exchange in which not even the busiest process computed.

    Args:
        total: of the exchange.
        packing: of it, spent by the server's side on making messages and reading replies.
        replies: those that came.

    Returns:
        `serialise`: records to tensors and back on both sides; `wait`: transport, starting and idling.
    """
    by_process: defaultdict[str, Work] = defaultdict(Work)
    for reply in replies:
        record = reply.config_records.get(RECORD, ConfigRecord())
        work = by_process[str(record.get("process"))]
        work.computing += _seconds(record.get("computing"))
        work.converting += _seconds(record.get("converting"))
    busiest = max(by_process.values(), key=lambda work: work.computing + work.converting, default=Work())
    serialise = packing + busiest.converting
    return {"serialise": serialise, "wait": max(0.0, total - busiest.computing - serialise)}


def _seconds(value: object) -> float:
    return value if isinstance(value, float) and value > 0 else 0.0
