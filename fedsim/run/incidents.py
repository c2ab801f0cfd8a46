"""What happened to a run's workers and was made good: told in rounds.jsonl, in result.json and on the screen.

A loss that a retry cured leaves the numbers as they would have been. A fallback may not: a chunk that was
cut up, a stacked chunk that was run one client at a time. Clients that were lost do change them.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from fedsim.engine.protocols import Incident
from fedsim.federation import Federation

Event = Mapping[str, Any]
SPLIT = "a chunk that was lost twice, and was run one client at a time"
UNSTACKED = "a stacked chunk that raised, and was run one client at a time"


@runtime_checkable
class Witness(Protocol):
    """A federation that knows what happens to its workers."""

    @property
    def device(self) -> str | None:
        """Where clients compute; None where each node decides that for itself."""
        ...

    def take_incidents(self) -> Sequence[Incident]:
        """What was lost since the last call, and what was done about it."""
        ...


def events_of(federation: Federation) -> list[dict[str, Any]]:
    """Since the last call: what, when and where, as JSON values."""
    if not isinstance(federation, Witness):
        return []
    return [
        {
            "round": one.round,
            "worker": one.worker,
            "what": one.kind,
            "clients": list(one.items),
            "remedy": one.remedy,
            "message": one.message,
        }
        for one in federation.take_incidents()
    ]


def device_of(federation: Federation) -> str | None:
    """`cpu`, `cuda` or `cuda:N`, or None where the federation does not say."""
    return federation.device if isinstance(federation, Witness) else None


def why_not_reproducible(
    failures: Sequence[Mapping[str, Any]], detours: Sequence[Mapping[str, Any]], events: Sequence[Event]
) -> list[str]:
    """One reason per entry; none where the same file gives the same bits again."""
    reasons = sorted({failure["kind"] for failure in failures} & {"died", "deadline"})
    if any(detour["failed"] for detour in detours):
        reasons.append(UNSTACKED)
    if any(event["remedy"] == "split" for event in events):
        reasons.append(SPLIT)
    return reasons


def spelt(event: Event) -> str:
    """An event in one line."""
    worker = "a SuperNode" if event["worker"] is None else f"worker {event['worker']}"
    clients = ", ".join(map(str, event["clients"][:10])) + (", ..." if len(event["clients"]) > 10 else "")
    of = f" with clients {clients}" if clients else ""
    return f"round {event['round']}, {worker}{of}: {event['what']}, {event['remedy']}: {event['message']}"
