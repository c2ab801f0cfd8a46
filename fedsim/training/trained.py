"""The tensors that a phase trains: one flat vector, and views of it by name."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from fedsim.contracts import Optimizer, Phase, Tensors, Vector
from fedsim.errors import RoundError


@dataclass(frozen=True)
class Run:
    """A stretch of the vector that one optimiser updates.

    Attributes:
        start: of the stretch.
        values: [stop - start], a view of the vector.
        optimizer: its description.
        state: the optimiser's tensors, changed in place.
    """

    start: int
    values: Vector
    optimizer: Optimizer
    state: dict[str, Tensor]


@dataclass(frozen=True)
class Trained:
    """The trained tensors of a phase in their order.

    Attributes:
        vector: [d], all of them.
        leaves: by name; views of the vector that record gradients.
        runs: in the order of the vector, together all of it.
    """

    vector: Vector
    leaves: Mapping[str, Tensor]
    runs: tuple[Run, ...]

    @classmethod
    def of(
        cls,
        phase: Phase,
        tensors: Tensors,
        names: Sequence[str],
        saved: Sequence[Tensors],
        *,
        whole: Vector | None = None,
    ) -> "Trained":
        """Copy the named tensors into one vector.

        Args:
            phase: gives each name its optimiser.
            tensors: all tensors of the client; not changed.
            names: of the tensors to train, at least one.
            saved: optimiser state of an earlier round, one entry per run; empty for a fresh start.
            whole: a vector that holds just these tensors already; it is copied at once.

        Raises:
            RoundError: the tensors differ in type, or `saved` belongs to other tensors.
        """
        first = tensors[names[0]].dtype
        for name in names:
            if tensors[name].dtype != first:
                raise RoundError(
                    f"A phase trains {names[0]!r} ({first}) and {name!r} ({tensors[name].dtype}): "
                    "tensors that are trained together need one type."
                )
        if whole is not None and whole.dtype == first:
            vector = whole.clone()
        else:
            vector = torch.cat([tensors[name].detach().reshape(-1) for name in names])
        sizes = [tensors[name].numel() for name in names]
        leaves = {
            name: piece.view(tensors[name].shape).requires_grad_()
            for name, piece in zip(names, vector.split_with_sizes(sizes), strict=True)
        }
        return cls(vector, leaves, _runs(phase, vector, names, sizes, saved))

    def step(self, gradient: Vector) -> None:
        """One optimiser step in place along a gradient [d]."""
        if len(self.runs) == 1:
            run = self.runs[0]
            run.optimizer.step(run.values, gradient, run.state)
            return
        for run in self.runs:
            part = gradient.narrow(0, run.start, len(run.values))
            run.optimizer.step(run.values, part, run.state)

    @cached_property
    def separable(self) -> bool:
        """Can each tensor take its step apart? Not where an optimiser counts its steps."""
        return all(t.shape == run.values.shape for run in self.runs for t in run.state.values())

    def step_each(self, gradients: Sequence[Tensor]) -> None:
        """The same step along one gradient per tensor, without laying them end to end first."""
        for (values, optimizer, state), gradient in zip(self._pieces, gradients, strict=True):
            optimizer.step(values, gradient, state)

    @cached_property
    def _pieces(self) -> list[tuple[Tensor, Optimizer, dict[str, Tensor]]]:
        """Each tensor with its optimiser and its part of the optimiser's state, as views."""
        pieces, start, runs = [], 0, list(self.runs)
        for leaf in self.leaves.values():
            size = leaf.numel()
            while len(runs) > 1 and start == runs[1].start:
                runs.pop(0)
            run, at = runs[0], start - runs[0].start
            state = {name: one.narrow(0, at, size).view(leaf.shape) for name, one in run.state.items()}
            pieces.append((leaf.detach(), run.optimizer, state))
            start += size
        return pieces

    def values(self) -> dict[str, Tensor]:
        """The tensors by name, views of the vector that record no gradients."""
        return {name: leaf.detach() for name, leaf in self.leaves.items()}

    def assign(self, values: Tensors) -> None:
        """Write new values of some of the tensors into the vector.

        Raises:
            RoundError: a name is not among the trained tensors.
        """
        for name, value in values.items():
            if name not in self.leaves:
                raise RoundError(f"A projection returned {name!r}, which its phase does not train.")
            self.leaves[name].detach().copy_(value)


def _runs(
    phase: Phase, vector: Vector, names: Sequence[str], sizes: Sequence[int], saved: Sequence[Tensors]
) -> tuple[Run, ...]:
    stretches: list[tuple[Optimizer, int]] = []
    for name, size in zip(names, sizes, strict=True):
        optimizer = next((one for claims, one in phase.groups if claims(name)), phase.optimizer)
        if stretches and stretches[-1][0] is optimizer:
            stretches[-1] = (optimizer, stretches[-1][1] + size)
        else:
            stretches.append((optimizer, size))
    if saved and len(saved) != len(stretches):
        raise RoundError(
            f"keep_optimizer: the phase has {len(stretches)} groups of trained tensors, "
            f"but the client kept the optimizer state of {len(saved)}."
        )
    runs, start = [], 0
    for number, (optimizer, size) in enumerate(stretches):
        values = vector.narrow(0, start, size)
        fresh = optimizer.init(values)
        state = _restored(fresh, saved[number]) if saved else fresh
        runs.append(Run(start, values, optimizer, state))
        start += size
    return tuple(runs)


def _restored(fresh: dict[str, Tensor], saved: Tensors) -> dict[str, Tensor]:
    """A copy of the saved state on the device and in the types of the fresh one."""
    for name, tensor in fresh.items():
        found = tuple(saved[name].shape) if name in saved else None
        if found != tuple(tensor.shape):
            raise RoundError(
                f"keep_optimizer: state {name!r} should have shape {tuple(tensor.shape)}, found {found}: "
                "the trained tensors or the optimizer changed between rounds."
            )
    return {name: tensor.copy_(saved[name]) for name, tensor in fresh.items()}
