"""The server's side: cohorts of updates, rules, and what a rule may use.

Shapes use n clients in a cohort, d floating-point values in the shared model.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from fedsim.contracts.data import DataSpec, Examples
from fedsim.contracts.training import Matrix, Tensors, Vector
from fedsim.params import Layout

Rule = Callable[[Matrix], Vector]
Predict = Callable[[Vector, Tensor], Tensor]


@dataclass(frozen=True, kw_only=True)
class Cohort:
    """The accepted replies of one round, in partition order.

    Attributes:
        round: counts from 1.
        partitions: n partition numbers, ascending.
        updates: [n, d], one row per client, in model-parameter units.
        examples: [n] int64, training examples behind each row.
        layout: names and shapes behind the d columns.
        extras: named uplink tensors, [n, ...] each.
    """

    round: int
    partitions: tuple[int, ...]
    updates: Matrix
    examples: Tensor
    layout: Layout
    extras: Tensors = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Decision:
    """What a rule made of a cohort.

    Attributes:
        update: [d], to be added to the model.
        weights: [n], each client's share, where the rule selects or weighs clients; it is how a
            defence is scored as a detector. None where the notion has no meaning.
        downlink: named tensors sent with the next round's model.
        trust: [n], how far the rule believes each client, where `weights` say something else, such as by
            how much a row was stretched; then it is this that the rule is scored by as a detector.
        aggregate: [d], what the rule made of the cohort where `update` is that after a server optimiser or a
            refinement; a defence that does nothing is told by it. None: `update` itself.
    """

    update: Vector
    weights: Vector | None = None
    downlink: Tensors = field(default_factory=dict)
    trust: Vector | None = None
    aggregate: Vector | None = None


class Trusted(Protocol):
    """Data that the server holds itself; see `federation.trusted`."""

    @property
    def examples(self) -> Examples:
        """Taken from the training data before it was divided; no client has them."""
        ...

    def update(self) -> Vector:
        """[d], what a client's honest training on these examples makes of this round's model."""
        ...

    def accuracy(self, model: Vector) -> float:
        """Of a model [d] on these examples, in [0, 1]."""
        ...


@dataclass(frozen=True, kw_only=True)
class Server:
    """What a rule may use besides the cohort.

    Attributes:
        model: [d], the model that the cohort started from.
        rng: a stream of this round, for rules that add noise.
        spec: shape and number of the data's inputs and classes; None where clients differ.
        predict: (model [d], inputs [b, ...]) -> logits [b, classes], for rules that look at how updated
            models answer; None unless the data are rows.
        trusted: the server's own examples; None unless `federation.trusted` asks for some. A rule that
            cannot do without says so by a class attribute `needs_trusted = True`.
        trained: [d] bool, which values an optimiser trains, as `Layout.trained` of the cohort's layout; None:
            all of them.
    """

    model: Vector
    rng: torch.Generator
    spec: DataSpec | None = None
    predict: Predict | None = None
    trusted: Trusted | None = None
    trained: Tensor | None = None


class SmallestCohort(NamedTuple):
    """For how many replies a rule is defined.

    Attributes:
        rule: whose condition it is, with its parameters, such as `krum with byzantine=2`.
        least: replies.
        change: what else would help, such as `lower strategy.byzantine`.
    """

    rule: str
    least: int
    change: str


class Strategy(Protocol):
    """A server rule: frozen hyperparameters, explicit state; one file in strategies/.

    A rule, or a part before it, that needs several replies says so by a property `smallest_cohort`, a
    `SmallestCohort`; a run with fewer clients per round is then refused before its first round.
    """

    def init(self, model: Vector) -> Tensors:
        """The state before round 1, as named tensors; empty for a rule without state."""
        ...

    def step(self, state: Tensors, cohort: Cohort, server: Server) -> tuple[Tensors, Decision]:
        """The new state and the decision; neither argument is changed."""
        ...


class Mixture(NamedTuple):
    """Rows made of rows.

    Attributes:
        rows: [n, d], what the rule sees in place of the clients' updates.
        origins: [n, n], how much of row i comes from client j; by it a rule that weighs rows is scored for
            what it kept of each client.
    """

    rows: Matrix
    origins: Matrix


class Before(Protocol):
    """A pre-aggregation: rows -> rows, in front of any rule; `strategy.before` lists them."""

    def mix(self, updates: Matrix, server: Server) -> Mixture:
        """From updates [n, d], which are not changed."""
        ...


class After(Protocol):
    """What the server does to its new model, with data of its own; `strategy.after` lists them."""

    def refine(self, model: Vector, round: int, layout: Layout, server: Server) -> Vector:
        """[d] -> [d]; `server.model` is still the model that the cohort started from."""
        ...
