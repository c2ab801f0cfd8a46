"""Flower's older server loop (`server_fn`, `start_grid`, `DefaultWorkflow`) without its threads.

In Flower, a thread registers nodes while the loop runs already, so that round 1 may see too few; one thread
per client sends one message and waits, at most CPUs + 4 at a time; and results come in the order in which
threads end. Inside `one_call_per_round` all nodes are registered in partition order before the loop begins,
the messages of a round go out in one call, and results are in partition order. Strategies, client managers
and servers are the app's own.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import flwr.server.compat.app as compat_app
import flwr.server.server as server_module
import flwr.server.workflow.default_workflows as workflows
from flwr.app import Message, MessageType, RecordDict
from flwr.common import Code
from flwr.compat.common import recorddict_compat as compat
from flwr.server.client_manager import ClientManager, SimpleClientManager
from flwr.server.client_proxy import ClientProxy
from flwr.server.compat.grid_client_proxy import GridClientProxy
from flwr.serverapp import Grid

from fedsim.errors import RoundError
from fedsim.flower.foreign.patch import replaced

Instructions = Sequence[tuple[ClientProxy, Any]]
Outcome = tuple[list[tuple[ClientProxy, Any]], list[Any]]


class _Kind(NamedTuple):
    """One of the two kinds of instruction, and how it becomes records and back."""

    message_type: str
    method: str
    pack: Callable[[Any], RecordDict]
    unpack: Callable[[RecordDict], Any]


_FIT = _Kind(
    MessageType.TRAIN,
    "fit",
    lambda ins: compat.fitins_to_recorddict(ins, keep_input=True),
    lambda content: compat.recorddict_to_fitres(content, keep_input=False),
)
_EVALUATE = _Kind(
    MessageType.EVALUATE,
    "evaluate",
    lambda ins: compat.evaluateins_to_recorddict(ins, keep_input=True),
    compat.recorddict_to_evaluateres,
)


@contextmanager
def one_call_per_round(grid: Grid) -> Iterator[None]:
    """Inside this scope, Flower's older server loop sends each round's messages at once."""
    order = {node: partition for partition, node in enumerate(grid.get_node_ids())}
    with ExitStack() as stack:
        for module in (compat_app, workflows):
            stack.enter_context(replaced(module, "start_update_client_manager_thread", _register_all))
        for name, kind in (("fit_clients", _FIT), ("evaluate_clients", _EVALUATE)):
            stack.enter_context(replaced(server_module, name, _gathered(kind, order)))
        stack.enter_context(replaced(SimpleClientManager, "wait_for", _refuse_to_wait))
        yield


def _register_all(
    grid: Grid, client_manager: ClientManager
) -> tuple[threading.Thread, threading.Event, threading.Event]:
    """Stands for the thread that registers nodes: they are all there when this returns."""
    for node in grid.get_node_ids():
        client_manager.register(GridClientProxy(node_id=node, grid=grid, run_id=grid.run.run_id))
    thread, stop, done = threading.Thread(target=_nothing), threading.Event(), threading.Event()
    thread.start()
    done.set()
    return thread, stop, done


def _nothing() -> None:
    """What is left for the thread to do."""


def _refuse_to_wait(self: SimpleClientManager, num_clients: int, timeout: int = 86400) -> bool:
    """Stands for waiting, up to a day, for clients that cannot come."""
    if len(self.clients) < num_clients:
        raise RoundError(
            f"The app's strategy waits for {num_clients} clients, but the run has {len(self.clients)}: "
            "run it with more clients."
        )
    return True


def _gathered(kind: _Kind, order: dict[int, int]) -> Callable[..., Outcome]:
    """A function that stands for `fit_clients` or `evaluate_clients`."""

    def ask(
        client_instructions: Instructions, max_workers: int | None, timeout: float | None, group_id: int
    ) -> Outcome:
        pairs = sorted(client_instructions, key=lambda pair: order.get(getattr(pair[0], "node_id", 0), -1))
        plain = all(type(proxy) is GridClientProxy for proxy, _ in pairs)
        replies = (
            _at_once(kind, pairs, timeout, group_id) if plain else _in_turn(kind, pairs, timeout, group_id)
        )
        results = [(proxy, reply) for proxy, reply in replies if _is_good(reply)]
        failures = [
            reply if isinstance(reply, BaseException) else (proxy, reply)
            for proxy, reply in replies
            if not _is_good(reply)
        ]
        return results, failures

    return ask


def _at_once(
    kind: _Kind, pairs: Instructions, timeout: float | None, group_id: int
) -> list[tuple[ClientProxy, Any]]:
    """One call of the grid; clients that share an instruction share its content."""
    if not pairs:
        return []
    contents = {id(ins): kind.pack(ins) for _, ins in pairs}
    messages, proxies = [], {}
    for proxy, ins in pairs:
        assert isinstance(proxy, GridClientProxy)
        message = Message(
            contents[id(ins)],
            proxy.node_id,
            kind.message_type,
            group_id=str(group_id) if group_id else "",
            ttl=timeout,
        )
        proxies[id(message)] = proxy
        messages.append(message)
    grid = next(iter(proxies.values())).grid
    replies = {r.metadata.reply_to_message_id: r for r in grid.send_and_receive(messages)}
    return [(proxies[id(m)], _result(kind, replies.get(m.metadata.message_id))) for m in messages]


def _in_turn(
    kind: _Kind, pairs: Instructions, timeout: float | None, group_id: int
) -> list[tuple[ClientProxy, Any]]:
    """The app has client proxies of its own: each is called by itself, in order."""
    replies: list[tuple[ClientProxy, Any]] = []
    for proxy, ins in pairs:
        try:
            replies.append((proxy, getattr(proxy, kind.method)(ins, timeout=timeout, group_id=group_id)))
        except Exception as error:  # as Flower does: a failure of one client is the strategy's business
            replies.append((proxy, error))
    return replies


def _result(kind: _Kind, reply: Message | None) -> Any:
    """The strategy's view of a reply; an error in Flower's own words."""
    if reply is None:
        return ValueError("Expected one Message but got: 0")
    if reply.has_error():
        return ValueError(
            f"Message contains an Error (reason: {reply.error.reason}). "
            "It originated during client-side execution of a message."
        )
    return kind.unpack(reply.content)


def _is_good(reply: Any) -> bool:
    return not isinstance(reply, BaseException) and bool(reply.status.code == Code.OK)
