"""A Flower grid that consists of one cohort and delivers nothing: stock strategies only count its nodes."""

from collections.abc import Iterable
from typing import Any

from flwr.app import Message
from flwr.serverapp import Grid

from fedsim.errors import RoundError


class CohortGrid(Grid):
    """Nodes 1 to n stand for the cohort's clients in partition order."""

    def __init__(self, clients: int) -> None:
        """`clients` nodes."""
        self._clients = clients

    def get_node_ids(self) -> Iterable[int]:
        """The cohort, in partition order."""
        return range(1, self._clients + 1)

    def create_message(self, *args: Any, **options: Any) -> Message:
        """As in Flower's grids."""
        return Message(*args, **options)

    def set_run(self, run: Any) -> None:
        """No run stands behind this grid."""

    @property
    def run(self) -> Any:
        """Refused."""
        raise self._refusal()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Refused."""
        raise self._refusal()

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Refused."""
        raise self._refusal()

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Refused."""
        raise self._refusal()

    @staticmethod
    def _refusal() -> RoundError:
        return RoundError("A strategy tried to reach its clients while it configured a round.")
