"""The tensors that a phase trains: one flat vector [d], or [c, d] for c clients, and views of it by name."""

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
        values: [stop - start] or [c, stop - start], a view of the vector.
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
        vector: [d], all of them, or [c, d].
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
        clients: int | None = None,
    ) -> "Trained":
        """Copy the named tensors into one vector.

        Args:
            phase: gives each name its optimiser.
            tensors: all tensors of the client, or of all clients ([c, ...] each); not changed.
            names: of the tensors to train, at least one.
            saved: optimiser state of an earlier round, one entry per run with state; empty: a fresh start.
            whole: a vector that holds just these tensors already; it is copied at once.
            clients: c, or None for one client.

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
        lead = () if clients is None else (clients,)
        sizes = [tensors[name].shape[len(lead) :].numel() for name in names]
        if whole is not None and whole.dtype == first:
            vector = whole.expand(*lead, -1).clone()
        else:
            parts = [
                tensors[name].detach().reshape(*lead, size) for name, size in zip(names, sizes, strict=True)
            ]
            vector = torch.cat(parts, dim=-1)
        shapes = {name: tensors[name].shape for name in names}
        return cls(vector, _leaves(vector, shapes), _runs(phase, vector, names, sizes, saved))

    def of_clients(self, rows: slice | Tensor) -> "Trained":
        """The part [k, d] of some clients: views where `rows` is a slice, copies where it is an index."""
        vector = self.vector[rows]
        shapes = {name: torch.Size((len(vector), *leaf.shape[1:])) for name, leaf in self.leaves.items()}
        runs = tuple(
            Run(
                run.start,
                vector.narrow(-1, run.start, run.values.shape[-1]),
                run.optimizer,
                {name: value[rows] for name, value in run.state.items()},
            )
            for run in self.runs
        )
        return Trained(vector, _leaves(vector, shapes), runs)

    def put(self, rows: Tensor, part: "Trained") -> None:
        """Write the copies of some clients back."""
        self.vector[rows] = part.vector
        for run, own in zip(self.runs, part.runs, strict=True):
            for name, value in own.state.items():
                run.state[name][rows] = value

    def step(self, gradient: Vector) -> None:
        """One optimiser step in place along a gradient shaped like the vector."""
        if len(self.runs) == 1:
            run = self.runs[0]
            run.optimizer.step(run.values, gradient, run.state)
            return
        for run in self.runs:
            part = gradient.narrow(-1, run.start, run.values.shape[-1])
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
            size = leaf.shape[self.vector.dim() - 1 :].numel()
            while len(runs) > 1 and start == runs[1].start:
                runs.pop(0)
            run, at = runs[0], start - runs[0].start
            state = {name: one.narrow(-1, at, size).view(leaf.shape) for name, one in run.state.items()}
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


def _leaves(vector: Vector, shapes: Mapping[str, torch.Size]) -> dict[str, Tensor]:
    lead = vector.dim() - 1
    pieces = vector.split_with_sizes([shape[lead:].numel() for shape in shapes.values()], dim=-1)
    return {
        name: piece.view(shape).requires_grad_()
        for (name, shape), piece in zip(shapes.items(), pieces, strict=True)
    }


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
    runs, start = [], 0
    for optimizer, size in stretches:
        values = vector.narrow(-1, start, size)
        fresh = optimizer.init(values)
        if values.dim() == 2:  # scalars become [c, 1], so that every client counts its own steps
            fresh = {n: t.expand(len(values), 1).clone() if t.dim() == 0 else t for n, t in fresh.items()}
        runs.append(Run(start, values, optimizer, fresh))
        start += size
    _restore([run.state for run in runs if run.state], saved)
    return tuple(runs)


def _restore(fresh: Sequence[dict[str, Tensor]], saved: Sequence[Tensors]) -> None:
    """Write the saved state, if there is any, into the fresh one; runs without state are left out."""
    if saved and len(saved) != len(fresh):
        raise RoundError(
            f"keep_optimizer: the phase has {len(fresh)} groups of trained tensors, "
            f"but the client kept the optimizer state of {len(saved)}."
        )
    for state, kept in zip(fresh, saved, strict=False):
        for name, tensor in state.items():
            found = tuple(kept[name].shape) if name in kept else None
            if found != tuple(tensor.shape):
                raise RoundError(
                    f"keep_optimizer: state {name!r} should have shape {tuple(tensor.shape)}, found {found}: "
                    "the trained tensors or the optimizer changed between rounds."
                )
            tensor.copy_(kept[name])
