"""How many messages were sent and what went wrong with them."""

from collections import Counter
from dataclasses import dataclass, field

from fedsim.contracts import Failure


@dataclass
class Ledger:
    """Counts per round, and one entry per fault.

    Attributes:
        sent: messages, by round; a message that names no round counts under the number of its call.
        failures: in the order in which they were found.
        notes: what was changed or looks wrong without being a failure, one line each.
    """

    sent: Counter[int] = field(default_factory=Counter)
    failures: list[Failure] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def messages(self) -> int:
        """All messages of the run."""
        return self.sent.total()

    def note(self, line: str) -> bool:
        """Keep a line unless it is known; tells whether it was new."""
        if line in self.notes:
            return False
        self.notes.append(line)
        return True

    def worst_round(self) -> tuple[int, int, int]:
        """(round, failed, sent) of the round that lost the largest part; (0, 0, 0) without messages."""
        failed = Counter(failure.round for failure in self.failures)
        rounds = [(r, failed[r], max(sent, failed[r])) for r, sent in self.sent.items()]
        return max(rounds, key=lambda entry: (entry[1] / entry[2], -entry[0]), default=(0, 0, 0))

    def verdict(self, max_failed_fraction: float) -> str:
        """One line if too much failed, else an empty string.

        Args:
            max_failed_fraction: of the messages of any one round. A run in which every message failed is a
                failed run whatever this says.
        """
        if not self.failures:
            return ""
        if len(self.failures) >= self.messages:
            return f"All {self.messages} messages failed; the first: {self.failures[0].message}"
        number, failed, sent = self.worst_round()
        if failed <= max_failed_fraction * sent:
            return ""
        first = next(failure for failure in self.failures if failure.round == number)
        return (
            f"In round {number}, {failed} of {sent} messages failed, more than the allowed fraction "
            f"{max_failed_fraction:g}; the first: {first.message}"
        )
