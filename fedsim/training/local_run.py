"""The phases of a local program on one client, step by step."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from fedsim import rng
from fedsim.contracts import Batch, ClientInfo, Context, LocalProgram, Phase, Tensors
from fedsim.errors import RoundError
from fedsim.metrics import Sum
from fedsim.training.batches import batches
from fedsim.training.functional import parameter_names
from fedsim.training.gradients import refuse_batch_norm, step_gradient
from fedsim.training.received import Received
from fedsim.training.trained import Trained


@dataclass
class LocalRun:
    """A client in the middle of a round.

    Attributes:
        client: with its data on the device of the tensors.
        program: of the round.
        received: the shared model.
        tensors: all tensors of the client; entries are replaced, the tensors given are never written to.
        additional: names of the private tensors beside the model.
        context: of the round, without noise.
        seed: of the run.
        steps: optimiser steps taken.
    """

    client: ClientInfo
    program: LocalProgram
    received: Received
    tensors: dict[str, Tensor]
    additional: frozenset[str]
    context: Context
    seed: int
    steps: int = 0
    _losses: list[Tensor] = field(default_factory=list)
    _counts: list[int] = field(default_factory=list)

    @property
    def train_loss(self) -> Sum:
        """The loss of every step, weighted by its examples."""
        losses = torch.cat(self._losses).tolist() if self._losses else []
        total = sum(loss * count for loss, count in zip(losses, self._counts, strict=True))
        return Sum(float(total), float(sum(self._counts)))

    def run(self, phase: Phase, purpose: str, saved: Sequence[Tensors] = ()) -> Trained:
        """Run one phase; its trained tensors replace the old ones.

        Args:
            phase: what to do.
            purpose: names the phase's random streams, such as `0` for the first.
            saved: optimiser state to continue from; empty: fresh.

        Raises:
            RoundError: the phase contradicts itself.
        """
        check_phase(phase, purpose, self.program.model)
        names = trained_names(phase, purpose, self.program.model, self.tensors, self.additional)
        whole = self.received.vector if self.received.is_whole(self.tensors, names) else None
        trained = Trained.of(phase, self.tensors, names, saved, whole=whole)
        self.tensors.update(trained.leaves)
        unused = self.additional.intersection(names)
        for batch, count, context in self._steps(phase, purpose):
            found = step_gradient(phase, self.tensors, trained.leaves, batch, context)
            if phase.transform is not None:
                trained.step(phase.transform(found.vector, context))
            elif trained.separable and not isinstance(found.gradient, Tensor):
                trained.step_each(found.gradient)
            else:
                trained.step(found.vector)
            if phase.project is not None:
                trained.assign(phase.project(trained.values(), context))
            if found.buffers:
                self._replace(found.buffers, trained)
            unused &= found.unused
            self.steps += 1
            self._losses.append(found.loss.reshape(1))
            self._counts.append(count)
        if unused and phase.epochs:
            raise RoundError(
                f"Phase {purpose} trains private tensor {min(unused)!r}, on which none of its losses "
                "depends: leave it out of the phase's `trains`."
            )
        self.tensors.update(trained.values())
        return trained

    def _steps(self, phase: Phase, purpose: str) -> Iterator[tuple[Batch, int, Context]]:
        """(batch, its number of examples, the context of the step) for every step of the phase."""
        known, address = self.context, (self.seed, purpose, self.context.round, self.client.partition)
        chance = None if phase.draw is None else _stream("draw", *address)
        device = self.received.vector.device
        for batch, count in batches(
            phase, self.client.data.train, lambda: _stream("shuffle", *address), device
        ):
            if phase.draw is None or chance is None:
                yield batch, count, known
                continue
            drawn, noise = phase.draw(batch, chance)
            with_noise = Context(known.anchor, known.private, known.downlink, known.round, noise)
            yield drawn, count, with_noise if noise else known

    def _replace(self, buffers: Tensors, trained: Trained) -> None:
        for name, value in buffers.items():
            if name in trained.leaves or name not in self.tensors:
                raise RoundError(
                    f"The losses returned buffer {name!r}, which is "
                    + ("trained." if name in trained.leaves else "not among the client's tensors.")
                )
            self.tensors[name] = value.detach()


def _stream(use: str, seed: int, purpose: str, round: int, partition: int) -> torch.Generator:
    return rng.stream(seed, f"{use}/{purpose}", round, partition)


def check_phase(phase: Phase, purpose: str, model: nn.Module) -> None:
    """Refuse what no client can run.

    Raises:
        RoundError: epochs or batch size make no sense, or per-example gradients are asked of BatchNorm.
    """
    if phase.epochs < 0:
        raise RoundError(f"Phase {purpose}: epochs must be at least 0, found {phase.epochs}.")
    if phase.batch_size is not None and phase.batch_size < 1:
        raise RoundError(f"Phase {purpose}: batch_size must be at least 1 or None, found {phase.batch_size}.")
    if phase.per_example:
        refuse_batch_norm(model)


def trained_names(
    phase: Phase, purpose: str, model: nn.Module, tensors: Tensors, additional: frozenset[str]
) -> list[str]:
    """The tensors that a phase trains, in the order of `tensors`.

    Raises:
        RoundError: there are none.
    """
    parameters = parameter_names(model)
    names = [
        name
        for name, tensor in tensors.items()
        if (name in parameters or name in additional) and tensor.is_floating_point() and phase.trains(name)
    ]
    if not names:
        raise RoundError(f"Phase {purpose} trains no tensor: its predicate `trains` accepts no name.")
    return names
