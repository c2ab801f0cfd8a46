"""One client at a time (tier T1): train a local program, or evaluate a client's own model.

Everything happens on the device of the order's vector, where the client's data must lie; results come
back on the CPU. Nothing that is passed in is changed: not the order, the private tensors, the template
or the data. A client's random streams depend on (seed, round, partition) alone.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedsim.contracts import (
    ClientInfo,
    ClientMethod,
    Context,
    LocalEvaluation,
    LocalProgram,
    LocalUpdate,
    Tensors,
)
from fedsim.errors import RoundError
from fedsim.federation import EvaluateOrder, Order, TrainOrder
from fedsim.metrics import Sum
from fedsim.params import Layout
from fedsim.training.evaluate import evaluate
from fedsim.training.functional import model_tensors
from fedsim.training.local_run import LocalRun
from fedsim.training.private import OPTIMIZER_PREFIX, optimizer_state, private_tensors, saved_optimizer
from fedsim.training.trained import Trained

_CPU = torch.device("cpu")


def train_client(
    method: ClientMethod,
    client: ClientInfo,
    order: TrainOrder,
    private: Tensors | None,
    seed: int,
    *,
    layout: Layout | None = None,
) -> LocalUpdate:
    """One round of one client.

    Args:
        method: what the client does.
        client: its number and data.
        order: the shared model and the rule's downlink.
        private: what the client's last round returned, or None at first use.
        seed: of the run.
        layout: of the order's vector; None: the client's own.

    Raises:
        RoundError: the client has no training examples, its shared tensors do not fit the order, or its
            program contradicts itself.
    """
    count = len(client.data.train)
    if count == 0:
        raise RoundError(f"Client {client.partition} has no training examples, so it cannot train.")
    start = _start(method, client, order, private, seed, layout)
    trained = {}
    for number, phase in enumerate(start.run.program.phases):
        saved = saved_optimizer(private, number) if start.run.program.keep_optimizer else ()
        trained[number] = start.run.run(phase, str(number), saved)
    return _update(method, start, order, trained, count)


def evaluate_client(
    method: ClientMethod,
    client: ClientInfo,
    order: EvaluateOrder,
    private: Tensors | None,
    seed: int,
    *,
    layout: Layout | None = None,
) -> LocalEvaluation:
    """The model that this client uses, on its own splits, after the program's `tune` phases.

    Arguments and errors are those of `train_client`. A client without training examples is tuned on
    nothing. A split without examples counts nothing.
    """
    run = _start(method, client, order, private, seed, layout).run
    if len(client.data.train):
        for number, phase in enumerate(run.program.tune):
            run.run(phase, f"tune/{number}")
    used = run.program.used(run.tensors)
    metrics: dict[str, Sum] = {}
    for split in order.splits:
        metrics |= evaluate(run.program.model, used, getattr(client.data, split), split)
    return LocalEvaluation(client.partition, metrics)


@dataclass(frozen=True)
class _Start:
    """A client that has received the order."""

    run: LocalRun
    layout: Layout
    vector: Tensor
    private: Tensors


def _start(
    method: ClientMethod,
    client: ClientInfo,
    order: Order,
    kept: Tensors | None,
    seed: int,
    layout: Layout | None,
) -> _Start:
    device = order.vector.device
    program = method.program(client, order.round)
    _move(program.model, device)
    template = model_tensors(program.model)
    layout = _fitting(program, template, order, layout)
    anchor = layout.unflatten(order.vector, order.integers)
    private = private_tensors(method, client, program, kept, seed)
    private = {name: value.to(device) for name, value in private.items()}
    ordered = {name: anchor[name] if name in anchor else private[name] for name in template}
    context = Context(anchor, private, order.downlink, order.round)
    return _Start(LocalRun(client, program, ordered | private, context, seed), layout, order.vector, private)


def _fitting(program: LocalProgram, template: Tensors, order: Order, expected: Layout | None) -> Layout:
    """The layout of the order, once the client's shared tensors are known to fit it."""
    own = Layout.of({name: value for name, value in template.items() if program.is_shared(name)})
    if expected is None:
        expected = own
    elif own != expected:
        _refuse_difference(expected, own)
    if order.vector.shape != (expected.size,) or order.vector.dtype != expected.dtype:
        raise RoundError(
            f"The shared model has {expected.size} values of {expected.dtype}, but the order carries "
            f"{tuple(order.vector.shape)} of {order.vector.dtype}."
        )
    for name, shape, _ in expected.integers:
        if name not in order.integers or tuple(order.integers[name].shape) != shape:
            raise RoundError(f"The order lacks the shared integer tensor {name!r} of shape {shape}.")
    return expected


def _refuse_difference(expected: Layout, own: Layout) -> None:
    """Raise with the name of the first tensor that differs."""
    wanted = {name: (shape, dtype) for name, shape, dtype in (*expected.floats, *expected.integers)}
    found = {name: (shape, dtype) for name, shape, dtype in (*own.floats, *own.integers)}
    for name in wanted | found:
        if wanted.get(name) != found.get(name):
            raise RoundError(
                f"Shared tensor {name!r}: the server has {_described(wanted.get(name))}, this client "
                f"{_described(found.get(name))}. Clients with different inputs keep such tensors private."
            )
    raise RoundError(f"The client's shared tensors come in another order: {list(found)}, not {list(wanted)}.")


def _described(entry: tuple[tuple[int, ...], torch.dtype] | None) -> str:
    return "no such tensor" if entry is None else f"{entry[1]} {entry[0]}"


def _update(
    method: ClientMethod, start: _Start, order: TrainOrder, trained: Mapping[int, Trained], count: int
) -> LocalUpdate:
    run = start.run
    after = run.tensors
    private = {name: after[name] for name in start.private}
    uplink, private_after = method.finish(run.context.anchor, after, private, order.downlink, run.steps)
    for name in private_after:
        if name.startswith(OPTIMIZER_PREFIX):
            raise RoundError(f"Private tensor {name!r}: names under {OPTIMIZER_PREFIX!r} are reserved.")
    kept = optimizer_state(trained) if run.program.keep_optimizer else {}
    return LocalUpdate(
        partition=run.client.partition,
        update=start.layout.flatten(after).sub_(start.vector).to(_CPU),
        integers=_returned(start.layout.integers_of(after)),
        examples=count,
        steps=run.steps,
        uplink=_returned(uplink),
        metrics={"train_loss": run.train_loss},
        private=_returned({**private_after, **kept}),
    )


def _returned(tensors: Tensors) -> dict[str, Tensor]:
    """On the CPU, none of them a view that would drag a larger tensor along."""
    return {name: _compact(tensor.detach().to(_CPU)) for name, tensor in tensors.items()}


def _compact(tensor: Tensor) -> Tensor:
    whole = tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()
    return tensor if whole and tensor.is_contiguous() else tensor.contiguous().clone()


def _move(model: nn.Module, device: torch.device) -> None:
    """Take a template to the device that this process trains on; its values stay as they are."""
    first = next((tensor for tensor in model_tensors(model).values()), None)
    if first is not None and first.device != device:
        model.to(device)
