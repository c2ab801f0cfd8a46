"""The phases of a local program on one client, step by step."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fedsim import rng
from fedsim.contracts import Batch, ClientInfo, Context, LocalProgram, Phase, Tensors
from fedsim.errors import RoundError
from fedsim.metrics import Sum
from fedsim.training.batches import batches
from fedsim.training.functional import model_tensors, parameter_names
from fedsim.training.gradients import refuse_batch_norm, step_gradient
from fedsim.training.trained import Trained


@dataclass
class LocalRun:
    """A client in the middle of a round.

    Attributes:
        client: with its data on the device of the tensors.
        program: of the round.
        tensors: all tensors of the client; entries are replaced, the tensors given are never written to.
        context: of the round, without noise.
        seed: of the run.
        steps: optimiser steps taken.
    """

    client: ClientInfo
    program: LocalProgram
    tensors: dict[str, Tensor]
    context: Context
    seed: int
    steps: int = 0
    _seen: int = 0
    _loss: Tensor = field(init=False)

    def __post_init__(self) -> None:
        """Start the sum of losses on the tensors' device."""
        device = next((tensor.device for tensor in self.tensors.values()), torch.device("cpu"))
        self._loss = torch.zeros(1, dtype=torch.float64, device=device)

    @property
    def train_loss(self) -> Sum:
        """The loss of every step, weighted by its examples."""
        return Sum(float(self._loss), self._seen)

    def run(self, phase: Phase, purpose: str, saved: Sequence[Tensors] = ()) -> Trained:
        """Run one phase; its trained tensors replace the old ones.

        Args:
            phase: what to do.
            purpose: names the phase's random streams, such as `0` for the first.
            saved: optimiser state to continue from; empty: fresh.

        Raises:
            RoundError: the phase trains nothing, or contradicts itself.
        """
        if phase.per_example:
            refuse_batch_norm(self.program.model)
        trained = Trained.of(phase, self.tensors, self._trained_names(phase, purpose), saved)
        self.tensors.update(trained.leaves)
        for batch, count, context in self._steps(phase, purpose):
            loss, gradient, buffers = step_gradient(phase, self.tensors, trained.leaves, batch, context)
            self._loss.add_(loss, alpha=count)
            if phase.transform is not None:
                gradient = phase.transform(gradient, context)
            trained.step(gradient)
            if phase.project is not None:
                trained.assign(phase.project(trained.values(), context))
            if buffers:
                self._replace(buffers, trained)
            self.steps += 1
            self._seen += count
        self.tensors.update(trained.values())
        return trained

    def _steps(self, phase: Phase, purpose: str) -> Iterator[tuple[Batch, int, Context]]:
        """(batch, its number of examples, the context of the step) for every step of the phase."""
        place = self.context.round, self.client.partition
        shuffle = rng.stream(self.seed, f"shuffle/{purpose}", *place)
        chance = rng.stream(self.seed, f"draw/{purpose}", *place)
        known = self.context
        for batch, count in batches(phase, self.client.data.train, shuffle, self._loss.device):
            if phase.draw is None:
                yield batch, count, known
                continue
            drawn, noise = phase.draw(batch, chance)
            yield drawn, count, Context(known.anchor, known.private, known.downlink, known.round, noise)

    def _trained_names(self, phase: Phase, purpose: str) -> list[str]:
        model = model_tensors(self.program.model)
        parameters = parameter_names(self.program.model)
        names = [
            name
            for name, tensor in self.tensors.items()
            if (name in parameters or name not in model) and tensor.is_floating_point() and phase.trains(name)
        ]
        if not names:
            raise RoundError(f"Phase {purpose} trains no tensor: its predicate `trains` accepts no name.")
        return names

    def _replace(self, buffers: Tensors, trained: Trained) -> None:
        for name, value in buffers.items():
            if name in trained.leaves or name not in self.tensors:
                raise RoundError(
                    f"The losses returned buffer {name!r}, which is "
                    + ("trained." if name in trained.leaves else "not among the client's tensors.")
                )
            self.tensors[name] = value.detach()
