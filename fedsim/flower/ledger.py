"""How many messages were sent and what went wrong with them."""

from collections import Counter
from dataclasses import dataclass, field

from fedsim.contracts import Failure

Group = tuple[int, str]
"""A round and a message type: the messages whose loss is weighed together."""


@dataclass
class Ledger:
    """Counts per round and message type, and one entry per fault.

    Attributes:
        sent: messages; one that names no round counts under the number of its call.
        failed: those without a good reply.
        failures: in the order in which they were found.
        notes: what was changed or looks wrong without being a failure, one line each.
    """

    sent: Counter[Group] = field(default_factory=Counter)
    failed: Counter[Group] = field(default_factory=Counter)
    failures: list[Failure] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def messages(self) -> int:
        """All messages of the run."""
        return self.sent.total()

    def record(self, message_type: str, failure: Failure) -> None:
        """Enter a fault."""
        self.failed[failure.round, message_type] += 1
        self.failures.append(failure)

    def note(self, line: str) -> None:
        """Keep a line once."""
        if line not in self.notes:
            self.notes.append(line)

    def verdict(self, max_failed_fraction: float) -> str:
        """One line if too much failed, else an empty string.

        Args:
            max_failed_fraction: of the messages of one type in one round. A run in which no message of some
                type was ever answered is a failed run whatever this says.
        """
        if not self.failures:
            return ""
        first = f"; the first failure: {self.failures[0].message}"
        for kind in sorted({kind for _, kind in self.failed}):
            sent, failed = _of(self.sent, kind), _of(self.failed, kind)
            if failed == sent:
                return f"All {sent} {kind!r} messages failed{first}"
        (number, kind), lost = max(self.failed.items(), key=lambda entry: self._fraction(*entry))
        sent = self.sent[number, kind]
        if lost / sent <= max_failed_fraction:  # 0.29 * 100 is below 29 in binary
            return ""
        allowed = f"more than the allowed fraction {max_failed_fraction:g}"
        return f"In round {number}, {lost} of {sent} {kind!r} messages failed, {allowed}{first}"

    def _fraction(self, group: Group, lost: int) -> tuple[float, int]:
        """Sorts by the part that was lost; of equals, the earlier round is the larger."""
        return (lost / self.sent[group], -group[0])


def _of(counts: Counter[Group], kind: str) -> int:
    return sum(count for (_, other), count in counts.items() if other == kind)
