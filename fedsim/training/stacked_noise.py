"""A phase's draw for each client apart, from its own stream, and what was drawn side by side."""

from collections.abc import Sequence

import torch
from torch import Tensor

from fedsim.contracts import STEP_NOISE, Batch, Draw, StackedBatch, StackedExamples, Tensors
from fedsim.training.client_view import Unstackable


def drawn_apart(
    draw: Draw,
    examples: StackedExamples,
    batch: StackedBatch,
    clients: Sequence[int],
    index: Tensor | None,
    generators: Sequence[torch.Generator],
) -> tuple[StackedBatch, dict[str, Tensor]]:
    """(the batch as drawn, noise [k, ...] by name).

    Args:
        draw: of the phase.
        examples: of all clients.
        batch: of the step's k clients.
        clients: their places in `examples`.
        index: what the batch was made from.
        generators: one per client of the step.

    Raises:
        Unstackable: graphs were changed, or clients drew tensors of different names or shapes.
    """
    shown = _own_batches(examples, batch, clients, index)
    drawn = [draw(own, generator) for own, generator in zip(shown, generators, strict=True)]
    if any(new is not own for (new, _), own in zip(drawn, shown, strict=True)):
        if batch.batch.edge_index is not None:
            raise Unstackable("its draw changes graphs")
        batch = StackedBatch(_joined([new for new, _ in drawn]))
    return batch, _stacked_noise([noise for _, noise in drawn], shown, batch)


def _own_batches(
    examples: StackedExamples, batch: StackedBatch, clients: Sequence[int], index: Tensor | None
) -> list[Batch]:
    if batch.batch.edge_index is None:
        return [Batch(x, y) for x, y in zip(batch.batch.x, batch.batch.y, strict=True)]
    return [
        examples.own(client, None if index is None else index[place]) for place, client in enumerate(clients)
    ]


def _joined(batches: Sequence[Batch]) -> Batch:
    x, y = [one.x for one in batches], [one.y for one in batches]
    if any(one.mask is not None for one in batches) or len({one.shape for one in x}) > 1:
        raise Unstackable("its draw gives clients batches of different shapes")
    return Batch(torch.stack(x), torch.stack(y))


def _stacked_noise(
    noises: Sequence[Tensors], shown: Sequence[Batch], batch: StackedBatch
) -> dict[str, Tensor]:
    """Noise of nodes ([v, ...], v differing from client to client) is padded with zeros."""
    names = list(noises[0])
    if any(list(noise) != names for noise in noises):
        raise Unstackable("its draw gives clients noise of different names")
    stacked = {}
    for name in names:
        values = [noise[name] for noise in noises]
        if batch.batch.edge_index is not None and not name.startswith(STEP_NOISE):
            values = [_padded(value, len(own.x), batch) for value, own in zip(values, shown, strict=True)]
        if len({value.shape for value in values}) > 1:
            raise Unstackable(f"its draw gives clients noise {name!r} of different shapes")
        stacked[name] = torch.stack(values)
    return stacked


def _padded(value: Tensor, nodes: int, batch: StackedBatch) -> Tensor:
    slots = batch.slots
    if slots is None or value.shape[:1] != (nodes,) or nodes == slots:
        return value
    return torch.cat([value, value.new_zeros(slots - nodes, *value.shape[1:])])
