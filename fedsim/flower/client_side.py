"""A Flower ClientApp around the platform's own training code: one client, one message at a time.

The same handler that runs in the engine's workers answers here, so a client's numbers are those of tier
T1 to the bit. Failures come back as content, with their traceback; a client's private tensors stay in
its context.
"""

import time
import traceback
from collections.abc import Callable, Sequence
from typing import Any

import torch
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from fedsim.contracts import Failure, LocalEvaluation, LocalUpdate
from fedsim.engine.protocols import Handler, Task
from fedsim.errors import ConfigError, FedsimError, RoundError
from fedsim.federation import Order
from fedsim.flower import records
from fedsim.flower.overhead import RECORD, Work, told
from fedsim.flower.private_state import UNKNOWN, accepted_tensors, hold, settle

HandlerOf = Callable[[Context, int], Handler]
"""(context, seed) -> the handler that holds this process's data; called for every message, so it caches."""

PARTITION_HINT = (
    "start every SuperNode with its own number: "
    'flower-supernode --node-config "partition-id=0 num-partitions={clients}" (then 1, 2, and so on)'
)


def client_app(handler_of: HandlerOf) -> ClientApp:
    """A ClientApp that trains, evaluates, and says which partition its node holds."""
    app = ClientApp()

    @app.query()
    def tell(message: Message, context: Context) -> Message:
        return _answered(message, lambda work: _place(context))

    @app.train()
    def train(message: Message, context: Context) -> Message:
        return _answered(message, lambda work: _train(message, context, handler_of, work))

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        return _answered(message, lambda work: _evaluate(message, context, handler_of, work))

    return app


def partition_of(context: Context) -> int:
    """The number of the client that this node holds.

    Raises:
        ConfigError: the node was started without `partition-id`.
    """
    value = context.node_config.get("partition-id")
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        found = "no partition-id" if value is None else f"partition-id = {value!r}"
        raise ConfigError(
            f"This SuperNode has {found} in its node config: {PARTITION_HINT.format(clients='N')}."
        )
    return value


def _answered(message: Message, answer: Callable[[Work], RecordDict]) -> Message:
    """The reply, and how long it took; an exception becomes its content."""
    torch.set_num_threads(1)  # a sum over another number of threads has other last bits
    begun, work = time.perf_counter(), Work()
    try:
        content = answer(work)
    except Exception as error:  # the boundary: whatever a client raises belongs into the ledger
        content = records.failure_records(_failure(error))
    work.converting += time.perf_counter() - begun - work.computing
    content[RECORD] = told(work)
    return Message(content, reply_to=message)


def _failure(error: Exception) -> Failure:
    known = isinstance(error, FedsimError)
    message = str(error) if known else f"{type(error).__name__}: {error}"
    return Failure(
        round=0,
        partition=None,
        worker=None,
        kind="exception",
        message=" ".join(message.split()),
        traceback="".join(traceback.format_exception(error)),
    )


def _place(context: Context) -> RecordDict:
    place = {"partition": partition_of(context)}
    total = context.node_config.get("num-partitions")
    if isinstance(total, int):
        place["partitions"] = total
    return RecordDict({"place": ConfigRecord(dict(place))})


def _train(message: Message, context: Context, handler_of: HandlerOf, work: Work) -> RecordDict:
    order = records.train_order(message.content)
    accepted = _whole(message, "accepted")
    settle(context.state, _whole(message, "seed"), accepted)
    result = _run(order, message, context, handler_of, work)
    if isinstance(result, LocalUpdate):
        if accepted == UNKNOWN and result.private:
            raise RoundError(
                "This client keeps private tensors, and the run was resumed without them: they lie on the "
                "nodes and are not part of a checkpoint. Start the run again, or use engine.tier = 'T1'."
            )
        hold(context.state, _whole(message, "seed"), order.round, result.private)
        return records.update_records(result)
    return records.failure_records(result)


def _evaluate(message: Message, context: Context, handler_of: HandlerOf, work: Work) -> RecordDict:
    result = _run(records.evaluate_order(message.content), message, context, handler_of, work)
    if isinstance(result, LocalEvaluation):
        return records.evaluation_records(result)
    return records.failure_records(result)


def _run(order: Order, message: Message, context: Context, handler_of: HandlerOf, work: Work) -> Any:
    """What the training code makes of the order for this node's client."""
    partition, seed = partition_of(context), _whole(message, "seed")
    private = accepted_tensors(context.state, seed, _whole(message, "accepted"))
    waited = time.perf_counter()
    handler = handler_of(context, seed)  # a process's first message builds its data: neither of both
    begun = time.perf_counter()
    results: Sequence[Any] = handler.run(order, Task((partition,), (private,)))
    work.computing += time.perf_counter() - begun
    work.converting -= begun - waited
    return results[0]


def _whole(message: Message, key: str) -> int:
    value = message.content.config_records["order"][key]
    if not isinstance(value, int):
        raise ConfigError(f"The server's message has order.{key} = {value!r}, not an integer.")
    return value
