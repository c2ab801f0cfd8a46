"""The phases of one program on many clients at once, step by step: `LocalRun`, stacked."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from fedsim import rng
from fedsim.contracts import (
    Context,
    LocalProgram,
    Phase,
    StackedExamples,
    Tensors,
)
from fedsim.errors import RoundError
from fedsim.training.local_run import check_phase, trained_names
from fedsim.training.received import Received
from fedsim.training.stacked_batches import Group, groups
from fedsim.training.stacked_gradients import StackedGradient, StackedStep, stacked_gradient
from fedsim.training.stacked_noise import drawn_apart
from fedsim.training.trained import Trained


@dataclass
class StackedRun:
    """c clients in the middle of a round, largest first.

    Attributes:
        partitions: of the clients.
        sizes: training examples of each.
        program: of all of them.
        received: the shared model.
        common: tensors that are still the same for all clients.
        own: the others, [c, ...] each; `common` and `own` together are all tensors.
        order: the names of all tensors, in the order of `LocalRun.tensors`.
        additional: names of the private tensors beside the model.
        context: of the round; `private` holds [c, ...] each.
        examples: the training splits.
        seed: of the run.
        steps: [c] int64, optimiser steps taken by each client.
        losses: [c] float64, each client's losses times the examples of their steps.
        counts: [c] int64, examples behind them.
    """

    partitions: Sequence[int]
    sizes: Sequence[int]
    program: LocalProgram
    received: Received
    common: dict[str, Tensor]
    own: dict[str, Tensor]
    order: Sequence[str]
    additional: frozenset[str]
    context: Context
    examples: StackedExamples
    seed: int
    steps: Tensor = field(init=False)
    losses: Tensor = field(init=False)
    counts: Tensor = field(init=False)

    def __post_init__(self) -> None:
        clients, device = len(self.partitions), self.received.vector.device
        self.steps = torch.zeros(clients, dtype=torch.int64)
        self.counts = torch.zeros(clients, dtype=torch.int64)
        self.losses = torch.zeros(clients, dtype=torch.float64, device=device)

    @property
    def tensors(self) -> dict[str, Tensor]:
        """All tensors in their order; those in `common` without the dimension of clients."""
        return {name: self.own[name] if name in self.own else self.common[name] for name in self.order}

    def stacked(self, name: str) -> Tensor:
        """[c, ...]."""
        if name in self.own:
            return self.own[name]
        return self.common[name].expand(len(self.partitions), *self.common[name].shape)

    def run(self, phase: Phase, purpose: str, saved: Sequence[Tensors] = ()) -> Trained:
        """Run one phase; its trained tensors replace the old ones.

        Args:
            phase: what to do.
            purpose: names the phase's random streams, such as `0` for the first.
            saved: optimiser state to continue from, [c, ...]; empty: fresh.

        Raises:
            RoundError: the phase contradicts itself.
            Unstackable: it cannot run stacked.
        """
        check_phase(phase, purpose, self.program.model)
        names = trained_names(phase, purpose, self.program.model, self.tensors, self.additional)
        whole = self.received.vector if self.received.is_whole(self.common, names) else None
        tensors = {name: self.stacked(name) for name in names}
        trained = Trained.of(phase, tensors, names, saved, whole=whole, clients=len(self.partitions))
        for name in names:
            self.common.pop(name, None)
        self.own.update(trained.values())
        unused = self._steps(phase, purpose, trained, self.additional.intersection(names))
        if unused and phase.epochs:
            raise RoundError(
                f"Phase {purpose} trains private tensor {min(unused)!r}, on which none of its losses "
                "depends: leave it out of the phase's `trains`."
            )
        return trained

    def _steps(self, phase: Phase, purpose: str, trained: Trained, unused: frozenset[str]) -> frozenset[str]:
        parts: dict[int, Trained] = {len(self.partitions): trained}  # of the first k clients
        generators = self._streams("draw", purpose) if phase.draw is not None else []
        shuffles = _Reseeded(self.seed, f"shuffle/{purpose}", self.context.round, self.partitions)
        for group in groups(phase, self.sizes, self.examples.ragged, shuffles):
            if isinstance(group.rows, slice) and group.rows.start == 0:
                part = parts.get(group.rows.stop) or trained.of_clients(group.rows)
                parts[group.rows.stop] = part
            else:
                part = trained.of_clients(group.rows)
            found = self._step(phase, group, part, generators)
            if not isinstance(group.rows, slice):
                trained.put(group.rows, part)
            self._count(group, found)
            unused &= found.unused
        return unused

    def _step(
        self, phase: Phase, group: Group, part: Trained, generators: Sequence[torch.Generator]
    ) -> StackedGradient:
        rows, everyone = group.rows, len(group.clients) == len(self.partitions)
        index = None if group.index is None else group.index.to(self.received.vector.device)
        batch = self.examples.batch(group.clients, index)
        noise: Tensors = {}
        if phase.draw is not None:
            own = [generators[client] for client in group.clients]
            batch, noise = drawn_apart(phase.draw, self.examples, batch, group.clients, index, own)
        private = self.context.private
        if not everyone:
            private = {name: value[rows] for name, value in private.items()}
        step = StackedStep(
            common=self.common,
            own={n: v if everyone else v[rows] for n, v in self.own.items() if n not in part.leaves},
            leaves=part.leaves,
            batch=batch,
            context=replace(self.context, private=private, noise=noise or None),
        )
        found = stacked_gradient(phase, step)
        if phase.transform is not None:
            part.step(step.mapped(phase.transform, found.matrix))
        elif part.separable and found.parts is not None:
            part.step_each(found.parts)
        else:
            part.step(found.matrix)
        if phase.project is not None:
            part.assign(step.mapped(phase.project, part.values()))
        self._replace(found.buffers, part, group)
        return found

    def _count(self, group: Group, found: StackedGradient) -> None:
        weights = group.counts if isinstance(group.counts, int) else group.counts.to(self.losses)
        self.losses[group.rows] += found.losses.detach().double() * weights
        self.steps[group.rows] += 1
        self.counts[group.rows] += group.counts

    def _replace(self, buffers: Tensors, part: Trained, group: Group) -> None:
        for name, value in buffers.items():
            if name in part.leaves or (name not in self.own and name not in self.common):
                raise RoundError(
                    f"The losses returned buffer {name!r}, which is "
                    + ("trained." if name in part.leaves else "not among the client's tensors.")
                )
            if len(group.clients) == len(self.partitions):
                self.common.pop(name, None)
                self.own[name] = value.detach()
                continue
            if name in self.common:
                self.own[name] = self.stacked(name).clone()
                del self.common[name]
            self.own[name][group.rows] = value.detach()

    def _streams(self, use: str, purpose: str) -> list[torch.Generator]:
        return [
            rng.stream(self.seed, f"{use}/{purpose}", self.context.round, partition)
            for partition in self.partitions
        ]


@dataclass(frozen=True)
class _Reseeded:
    """A client's stream in a generator that the next client's stream replaces: making one costs 10 us."""

    seed: int
    purpose: str
    round: int
    partitions: Sequence[int]
    generator: torch.Generator = field(default_factory=torch.Generator)

    def __call__(self, client: int) -> torch.Generator:
        derived = rng.derive(self.seed, self.purpose, self.round, self.partitions[client])
        return self.generator.manual_seed(derived)
