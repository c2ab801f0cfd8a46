"""Changes of an honest local program that attacks are made of: batches, training, bounds.

Each function returns another program; the honest one, its random streams and its dropout noise stay as they
are. Programs of malicious clients run alone, so their `stack` key is dropped.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from fedsim.contracts import (
    Batch,
    Context,
    GradientTransform,
    LocalProgram,
    Phase,
    Projection,
    Tensors,
    Vector,
)
from fedsim.errors import ConfigError

ChangeBatch = Callable[[Batch], Batch]


def change_phases(program: LocalProgram, change: Callable[[Phase], Phase]) -> LocalProgram:
    """The program with every training phase changed; what runs before evaluations (`tune`) is not."""
    return replace(program, phases=tuple(change(phase) for phase in program.phases), stack=None)


def change_batches(program: LocalProgram, change: ChangeBatch) -> LocalProgram:
    """The program trained on changed batches; `change` keeps their size.

    The honest noise of a step, such as a dropout mask, is drawn first and from the honest batch, so an
    attack that changes nothing trains to the same bits.
    """

    def changed(phase: Phase) -> Phase:
        honest = phase.draw

        def draw(batch: Batch, rng: torch.Generator) -> tuple[Batch, Tensors]:
            drawn, noise = (batch, {}) if honest is None else honest(batch, rng)
            return change(drawn), noise

        return replace(phase, draw=draw)

    return change_phases(program, changed)


def train_longer(program: LocalProgram, epochs: int | None, rate: float) -> LocalProgram:
    """The program with other epochs per phase (None: as they are) and all learning rates times `rate`."""

    def scaled(optimizer: Any) -> Any:
        return replace(optimizer, learning_rate=optimizer.learning_rate * rate)

    def changed(phase: Phase) -> Phase:
        groups = tuple((claims, scaled(optimizer)) for claims, optimizer in phase.groups)
        wanted = phase.epochs if epochs is None or phase.epochs == 0 else epochs
        return replace(phase, epochs=wanted, optimizer=scaled(phase.optimizer), groups=groups)

    return change_phases(program, changed)


def then_project(program: LocalProgram, project: Projection) -> LocalProgram:
    """The program that projects its trained tensors after every step, and after its own projection."""

    def changed(phase: Phase) -> Phase:
        honest = phase.project

        def both(tensors: Tensors, context: Context) -> Tensors:
            return project(tensors if honest is None else honest(tensors, context), context)

        return replace(phase, project=both)

    return change_phases(program, changed)


def transform_first(program: LocalProgram, transform: GradientTransform) -> LocalProgram:
    """The program that transforms a step's combined gradient before its own transform."""

    def changed(phase: Phase) -> Phase:
        honest = phase.transform

        def both(gradient: Vector, context: Context) -> Vector:
            gradient = transform(gradient, context)
            return gradient if honest is None else honest(gradient, context)

        return replace(phase, transform=both)

    return change_phases(program, changed)


def keep_update_in(masks: Tensors) -> Projection:
    """The trained tensors become anchor + mask * (theta - anchor): the update is exactly 0 outside the mask.

    After every step it holds against momentum and weight decay, which a mask on gradients alone does not.

    Args:
        masks: bool, by name and in the shape of the tensors; tensors without one are left alone.
    """

    def project(tensors: Tensors, context: Context) -> Tensors:
        return {
            name: torch.where(masks[name].to(value.device), value, context.anchor[name])
            if name in masks and name in context.anchor
            else value
            for name, value in tensors.items()
        }

    return project


def keep_update_within(radius: float) -> Projection:
    """Projection of the whole trained update onto the ball of Euclidean `radius` around the received model.

    It covers the trained shared tensors together; BatchNorm's statistics are no trained tensors.
    """

    def project(tensors: Tensors, context: Context) -> Tensors:
        shared = [name for name in tensors if name in context.anchor]
        moved = {name: tensors[name] - context.anchor[name] for name in shared}
        norm = torch.stack([torch.linalg.vector_norm(one.double()) for one in moved.values()]).norm()
        if norm <= radius:
            return tensors
        scale = radius / norm
        near = {name: context.anchor[name] + moved[name] * scale.to(moved[name].dtype) for name in shared}
        return {**tensors, **near}

    return project


def clip_rows(rows: Vector, radius: float, trained: Tensor | None = None) -> Vector:
    """[m, d] -> [m, d], rows longer than `radius` scaled down to it; norms in float64.

    Args:
        rows: [m, d].
        radius: above 0, in parameter units.
        trained: [d] bool, the columns that count in a norm; None: all.
    """
    counted = rows if trained is None else rows[:, trained.to(rows.device)]
    norms = torch.linalg.vector_norm(counted.double(), dim=1, keepdim=True)
    return torch.where(norms > radius, rows.double() * (radius / norms), rows.double()).to(rows.dtype)


def check_fraction(key: str, value: float) -> None:
    """Refuse a value outside [0, 1].

    Raises:
        ConfigError: naming `key`.
    """
    if not 0 <= value <= 1:
        raise ConfigError(f"{key} must lie from 0 to 1, found {value}.")


def check_above_zero(key: str, value: float) -> None:
    """Refuse a number that is not finite and above 0.

    Raises:
        ConfigError: naming `key`.
    """
    if not 0 < value < float("inf"):
        raise ConfigError(f"{key} must be above 0 and finite, found {value}.")
