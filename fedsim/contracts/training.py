"""Local training, declared: models, optimisers, phases, programs, client methods.

Shapes use b examples in a batch, n clients, d floating-point values in the shared model, k losses.
"""

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from fedsim.contracts.data import Batch, ClientInfo, DataSpec

Tensors = Mapping[str, Tensor]
Vector = Tensor
Matrix = Tensor
Predicate = Callable[[str], bool]


class Model(Protocol):
    """An nn.Module called as `model(batch, noise)`; it never draws by itself.

    A model may also offer `forward_stacked(tensors, batch, noise)`: its logits [k, b, classes] for k
    clients, given tensors [k, ...] by name, a `StackedBatch`, and noise [k, ...] or None. Without it, models
    of rows are mapped over clients by `torch.func.vmap`, and models of graphs run one client at a time.
    """

    def __call__(self, batch: Batch, noise: Tensors | None = None) -> Tensor:
        """Logits, [b, classes] (nodes: [v, classes]; graphs: [g, classes]); noise None: no dropout."""
        ...

    def draw(self, batch: Batch, rng: torch.Generator) -> dict[str, Tensor]:
        """The noise of one training step, such as dropout masks; empty where there is none."""
        ...


class ModelBuilder(Protocol):
    """The `[model]` table: hyperparameters that become a module once the data is known."""

    def build(self, spec: DataSpec) -> nn.Module:
        """A module that satisfies `Model`; initialised from torch's global generator."""
        ...


class Optimizer(Protocol):
    """A frozen description of an optimiser; elementwise, so it runs on [d] and on stacked [c, d].

    State of shape [], such as a count of steps, has shape [c, 1] on a stack.
    """

    @property
    def learning_rate(self) -> float:
        """Above 0; a schedule changes it with `dataclasses.replace`."""
        ...

    def init(self, parameters: Vector) -> dict[str, Tensor]:
        """Fresh state: tensors shaped like `parameters`, or scalars of shape []."""
        ...

    def step(self, parameters: Vector, gradient: Vector, state: dict[str, Tensor]) -> None:
        """Update `parameters` and `state` in place; `gradient` is only read."""
        ...


@dataclass(frozen=True)
class Context:
    """What a loss, transform or projection may read besides the tensors.

    Attributes:
        anchor: the received shared tensors, as they were at the start of the round.
        private: the client's private tensors, as they were at the start of the round.
        downlink: named tensors that the rule sent along, such as SCAFFOLD's control variate.
        noise: what the phase's `draw` returned for this step, or None.
        round: counts from 1.
    """

    anchor: Tensors
    private: Tensors
    downlink: Tensors
    round: int
    noise: Tensors | None = None


Losses = Callable[[Tensors, Batch, Context], tuple[Tensor, Tensors]]
Combine = Callable[[Matrix, Context], Vector]
GradientTransform = Callable[[Vector, Context], Vector]
Projection = Callable[[Tensors, Context], Tensors]
Draw = Callable[[Batch, torch.Generator], tuple[Batch, Tensors]]


STEP_NOISE = "step/"
"""Prefix of noise that belongs to a whole step rather than to its examples; see `Phase.per_example`."""


def total(gradients: Matrix, context: Context) -> Vector:
    """[k, d] -> [d]: the gradient of the sum of the losses."""
    return gradients.sum(dim=0)


def keep(tensors: Tensors) -> Tensors:
    """The tensors as they are."""
    return tensors


@dataclass(frozen=True, kw_only=True)
class Phase:
    """Some epochs of training of some tensors.

    Attributes:
        trains: which floating-point tensors this phase updates, asked for the model's parameters and
            for the additional private tensors; the rest is frozen. Their order: the model's, then the
            additional private tensors by name.
        losses: (tensors, batch, context) -> (losses [k], or [] for a single one, new buffers); pure.
        combine: gradients [k, d] -> gradient [d], d over the trained tensors in their order.
        per_example: k is the batch: `losses` is called on one example at a time (rows only), and
            `combine` sees one gradient per example. Noise is handed out along its first dimension,
            [b, ...] -> [1, ...], except under names that begin with `STEP_NOISE`, such as the Gaussian
            noise that `combine` adds for privacy: that stays whole.
        draw: (batch, rng) -> (batch, noise): augmentation, dropout masks.
        optimizer: for every trained tensor that no group claims.
        groups: (predicate, optimiser) pairs; the first that accepts a name claims it.
        epochs: passes over the training split.
        batch_size: examples per step, the last batch may be smaller; None: all of them.
        transform: applied to the combined gradient [d] before the step.
        project: applied to the trained tensors after the step; returns their new values.
    """

    trains: Predicate
    losses: Losses
    optimizer: Optimizer
    epochs: int
    batch_size: int | None
    combine: Combine = total
    per_example: bool = False
    draw: Draw | None = None
    groups: tuple[tuple[Predicate, Optimizer], ...] = ()
    transform: GradientTransform | None = None
    project: Projection | None = None


@dataclass(frozen=True, kw_only=True)
class LocalProgram:
    """What one client does in one round, declared.

    Attributes:
        model: a template, called functionally, never mutated; its state names the model's tensors.
        is_shared: over parameters and buffers of the model: does this tensor leave the client?
        phases: in order.
        keep_optimizer: the optimisers' state becomes private state, kept between rounds.
        used: all tensors -> the model's tensors that this client uses and is evaluated on.
        tune: phases run before an evaluation only; what they change is discarded.
        stack: clients whose programs have equal keys (and tensors of equal shapes) compute the same
            functions of (tensors, batch, context), so that one client's closures serve them all and they
            may run as one stacked computation; what differs from client to client is a private tensor.
            None: this client runs alone.
    """

    model: nn.Module
    is_shared: Predicate
    phases: tuple[Phase, ...]
    keep_optimizer: bool = False
    used: Callable[[Tensors], Tensors] = keep
    tune: tuple[Phase, ...] = ()
    stack: Hashable | None = None


class ClientMethod(Protocol):
    """A personalisation or training method: pure and picklable; one file in clients/."""

    def init(self, client: ClientInfo, rng: torch.Generator) -> Tensors:
        """Private tensors at the client's first use: private model tensors and any others.

        A private model tensor that is left out starts at the template's value.
        """
        ...

    def program(self, client: ClientInfo, round: int) -> LocalProgram:
        """The program of one round; schedules over rounds live here."""
        ...

    def finish(
        self, before: Tensors, after: Tensors, private: Tensors, downlink: Tensors, steps: int
    ) -> tuple[Tensors, Tensors]:
        """(uplink, private): what travels beside the update, and the private tensors to keep.

        Args:
            before: the received shared tensors.
            after: all tensors after the last phase.
            private: the private tensors after the last phase; return them, or a changed copy.
            downlink: what the rule sent along.
            steps: optimiser steps taken in the round, over all phases.
        """
        ...
