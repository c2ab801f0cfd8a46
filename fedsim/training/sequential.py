"""One client at a time (tier T1): train a local program, or evaluate a client's own model.

Everything happens on the device of the order's vector, where the client's data must lie; results come
back on the CPU. Nothing that is passed in is changed: not the order, the private tensors, the template
or the data. A client's random streams depend on (seed, round, partition) alone.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from fedsim.contracts import (
    Batch,
    ClientInfo,
    ClientMethod,
    Context,
    Examples,
    LocalEvaluation,
    LocalUpdate,
    Tensors,
)
from fedsim.errors import RoundError
from fedsim.federation import EvaluateOrder, Order, TrainOrder
from fedsim.training.evaluate import attack_success, evaluate
from fedsim.training.functional import parameter_names, shared_layout, tensors_on
from fedsim.training.local_run import LocalRun
from fedsim.training.method import diagnostics, finished
from fedsim.training.private import optimizer_state, private_tensors, refuse_reserved, saved_optimizer
from fedsim.training.received import Received
from fedsim.training.returned import returned
from fedsim.training.trained import Trained

_CPU = torch.device("cpu")


def train_client(
    method: ClientMethod,
    client: ClientInfo,
    order: TrainOrder,
    private: Tensors | None,
    seed: int,
    *,
    received: Received | None = None,
) -> LocalUpdate:
    """One round of one client.

    Args:
        method: what the client does.
        client: its number and data.
        order: the shared model and the rule's downlink.
        private: what the client's last round returned, or None at first use.
        seed: of the run.
        received: the order's model, where a caller has unpacked it for many clients.

    Raises:
        RoundError: the client has no training examples, its shared tensors do not fit the order, or its
            program contradicts itself.
    """
    if not len(client.data.train):
        raise RoundError(f"Client {client.partition} has no training examples, so it cannot train.")
    run = _start(method, client, order, private, seed, received)
    keeps = run.program.keep_optimizer
    trained = [
        run.run(phase, str(number), saved_optimizer(private, number) if keeps else ())
        for number, phase in enumerate(run.program.phases)
    ]
    return _update(method, run, trained)


def evaluate_client(
    method: ClientMethod,
    client: ClientInfo,
    order: EvaluateOrder,
    private: Tensors | None,
    seed: int,
    *,
    received: Received | None = None,
    poison: Callable[[Batch], Batch] | None = None,
) -> LocalEvaluation:
    """The model that this client uses, on its own splits, after the program's `tune` phases.

    Beside accuracies and losses, what the method's own `diagnose` tells (`method.Diagnosing`).

    A client without training examples is not tuned. A split without examples counts nothing. Errors are
    those of `train_client`.

    Args:
        method: what the client does.
        client: its number and data.
        order: the shared model, and which splits.
        private: what the client's last round returned, or None at first use.
        seed: of the run.
        received: the order's model, where a caller has unpacked it for many clients.
        poison: makes the attack's batch of one; with it `attack_success` on the test split is measured too.
    """
    run = _start(method, client, order, private, seed, received)
    if len(client.data.train):
        for number, phase in enumerate(run.program.tune):
            run.run(phase, f"tune/{number}")
    used = run.program.used(run.tensors)
    splits: dict[str, Examples] = {split: getattr(client.data, split) for split in order.splits}
    metrics = evaluate(run.program.model, used, splits)
    if poison is not None:
        metrics["attack_success"] = attack_success(run.program.model, used, client.data.test, poison)
    metrics |= diagnostics(method, client, run.program.model, run.tensors)
    return LocalEvaluation(client.partition, metrics)


def _start(
    method: ClientMethod,
    client: ClientInfo,
    order: Order,
    kept: Tensors | None,
    seed: int,
    received: Received | None,
) -> LocalRun:
    device = order.vector.device
    program = method.program(client, order.round)
    template = tensors_on(device, program.model)
    own = shared_layout(program.model, program.is_shared)
    received = received or Received.of(order, own)
    received.check(own)
    private = private_tensors(method, client, program, kept, seed)
    private = {name: value.to(device) for name, value in private.items()}
    context = Context(received.anchor, private, order.downlink, order.round)
    tensors = _tensors_at_start(template, parameter_names(program.model), context)
    additional = frozenset(private).difference(template)
    return LocalRun(client, program, received, tensors, additional, context, seed)


def _tensors_at_start(template: Tensors, parameters: frozenset[str], context: Context) -> dict[str, Tensor]:
    """The model's tensors in its order, then the additional private ones.

    Buffers are copies: a loss that writes into one, as BatchNorm does, must not reach other clients.
    """
    found = {**context.private, **context.anchor}
    tensors = {name: found[name] if name in parameters else found[name].clone() for name in template}
    return tensors | {name: value for name, value in context.private.items() if name not in template}


def _update(method: ClientMethod, run: LocalRun, trained: Sequence[Trained]) -> LocalUpdate:
    after, context, layout = run.tensors, run.context, run.received.layout
    own = {name: after[name] for name in context.private}
    uplink, private = finished(method, context.anchor, after, own, context.downlink, run.steps)
    refuse_reserved(private)
    kept = optimizer_state(trained) if run.program.keep_optimizer else {}
    return LocalUpdate(
        partition=run.client.partition,
        update=_moved(run, trained).to(_CPU),
        integers=returned(layout.integers_of(after)),
        examples=len(run.client.data.train),
        steps=run.steps,
        uplink=returned(uplink),
        metrics={"train_loss": run.train_loss},
        private=returned({**private, **kept}),
    )


def _moved(run: LocalRun, trained: Sequence[Trained]) -> Tensor:
    """[d], the shared tensors after minus before."""
    before, layout = run.received.vector, run.received.layout
    if not run.received.names:  # nothing is federated
        return torch.zeros_like(before)
    if len(trained) == 1 and list(trained[0].leaves) == run.received.names:
        return trained[0].vector.to(before.dtype) - before
    return layout.flatten(run.tensors).sub_(before)
