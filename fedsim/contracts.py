"""The nouns and protocols that every part of fedsim shares.

Data: `Batch`, `Examples`, `ClientData`, `FederatedData`. Local training: `LocalProgram`, `Phase`,
`ClientMethod`. Server: `Cohort`, `Decision`, `Strategy`. Adversary: `Attack`. Faults: `Failure`.
Shapes use b examples in a batch, n clients in a cohort, d floating-point values in the shared model,
k losses, m malicious clients.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from fedsim.metrics import Sum
from fedsim.params import Layout

Tensors = Mapping[str, Tensor]
Vector = Tensor
Matrix = Tensor
Rule = Callable[[Matrix], Vector]
Task = Literal["rows", "nodes", "graphs"]
Predicate = Callable[[str], bool]


class Batch(NamedTuple):
    """What a model is shown at once; a pytree, so that `torch.func` can map over it.

    Attributes:
        x: [b, ...] inputs; for graphs [v, f], the features of all v nodes.
        y: int64 labels: [b] for rows, [v] for nodes, [g] for g graphs.
        mask: [v] bool, the nodes that count in loss and accuracy; None: all of y counts.
        edge_index: [2, e] int64, or None for rows.
        graph: [v] int64, the graph each node belongs to, or None.
    """

    x: Tensor
    y: Tensor
    mask: Tensor | None = None
    edge_index: Tensor | None = None
    graph: Tensor | None = None


@dataclass(frozen=True)
class DataSpec:
    """What a model must know of the data: the task, the shape of one input, the number of classes."""

    task: Task
    shape: tuple[int, ...]  # rows: (channels, height, width) or (features,); graphs: (features,)
    classes: int


class Examples(Protocol):
    """One split of one client's data: rows, nodes or graphs that count."""

    def __len__(self) -> int:
        """How many rows, nodes or graphs count."""
        ...

    def batch(self, index: Tensor | None = None) -> Batch:
        """The examples at `index` ([b] int64, into 0..len-1) or all of them, ready for a model."""
        ...

    def labels(self) -> Tensor:
        """[len] int64."""
        ...

    def to(self, device: torch.device, dtype: torch.dtype) -> "Examples":
        """The same examples on another device; batches carry floating-point inputs of `dtype`."""
        ...


class StackedExamples(Protocol):
    """The same split of c clients, side by side; `Examples` that can be stacked make one.

    Such examples have a static method `together(parts) -> StackedExamples`, which is asked for the splits
    of c clients; without it, or where it returns None, clients' batches are made apart and stacked.
    """

    @property
    def ragged(self) -> bool:
        """Do clients with different numbers of examples fit into one step over all their examples?"""
        ...

    def batch(self, rows: Sequence[int], index: Tensor | None) -> "StackedBatch":
        """The examples at `index` ([k, b] int64, a row per client) of clients `rows`; None: all of them."""
        ...

    def own(self, row: int, index: Tensor | None) -> Batch:
        """What `batch(index)` ([b]) of one client's examples is, but only to be read, and so not copied."""
        ...


@dataclass(frozen=True, eq=False)
class StackedBatch:
    """The batches of k clients.

    Attributes:
        batch: rows: x [k, b, ...], y [k, b]. Nodes and graphs: every client has v slots for nodes, those
            beyond its own are empty; x [k, v, f], or where less than 10 % of it is not zero, a CSR matrix
            [k v, k f] with a block per client; y [k, v] or [k, g]; mask [k, v]; edge_index [2, e] and graph
            [k v] count slots and graphs over all clients (graph: -1 for an empty slot).
        slots: v, or None for rows.
        forms: what a model derived from this batch's inputs and edges, such as a normalised adjacency.
            It lives as long as they stay the same.
    """

    batch: Batch
    slots: int | None = None
    forms: dict[str, Any] = field(default_factory=dict)

    def form(self, name: str, build: Callable[[Batch], Any]) -> Any:
        """`build(batch)`, built once."""
        if name not in self.forms:
            self.forms[name] = build(self.batch)
        return self.forms[name]


@dataclass(frozen=True)
class ClientData:
    """One client's own data; the splits are disjoint."""

    train: Examples
    val: Examples
    test: Examples
    spec: DataSpec


@dataclass(frozen=True)
class FederatedData:
    """A data set divided among clients.

    Attributes:
        clients: one entry per partition, in partition order.
        test: the server's test set, disjoint from every client's train and val; None where there is no
            common one (clients with different inputs).
        spec: of the server's model; None where clients differ.
        facts: provenance for the manifest (name, source, files' digest, sizes), JSON values only.
    """

    clients: tuple[ClientData, ...]
    test: Examples | None
    spec: DataSpec | None
    facts: Mapping[str, Any]


@dataclass(frozen=True)
class ClientInfo:
    """What a client method may look at: the client's number and its own data."""

    partition: int
    data: ClientData

    @property
    def spec(self) -> DataSpec:
        """Task, input shape and classes of this client's data."""
        return self.data.spec


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


@dataclass(frozen=True)
class Detour:
    """Why a client that should have run stacked (T2) ran by itself (T1).

    Attributes:
        reason: one line.
        failed: an exception in the stacked run; else its program cannot be stacked, in any run.
    """

    reason: str
    failed: bool


@dataclass(frozen=True)
class LocalUpdate:
    """One client's result of a round.

    Attributes:
        partition: the client.
        update: [d], shared tensors after minus before, in the layout's type.
        integers: integer tensors of the shared model after training.
        examples: size of the training split; the client's weight in a mean.
        steps: optimiser steps taken.
        uplink: named tensors beside the update.
        metrics: merged statistics of the training, such as `train_loss`.
        private: the private tensors to keep; never sent to the server.
        detour: set where it was not computed the way that was asked.
    """

    partition: int
    update: Vector
    integers: Tensors
    examples: int
    steps: int
    uplink: Tensors
    metrics: Mapping[str, Sum]
    private: Tensors
    detour: Detour | None = None


@dataclass(frozen=True)
class LocalEvaluation:
    """One client's statistics over its own splits: `test_accuracy`, `val_loss`, and so on."""

    partition: int
    metrics: Mapping[str, Sum]


@dataclass(frozen=True)
class Failure:
    """A ledger entry: what went wrong, where, and how it looked.

    Attributes:
        round: counts from 1.
        partition: the client, or None where a whole worker is concerned.
        worker: the worker's number, or None for the driver.
        kind: `exception` in a client, `died` (its process ended), `deadline`, or `refused` (a reply
            that is not finite, misshapen, or has no examples).
        message: one line.
        traceback: the whole of it, or an empty string.
    """

    round: int
    partition: int | None
    worker: int | None
    kind: Literal["exception", "died", "deadline", "refused"]
    message: str
    traceback: str = ""


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
    """

    update: Vector
    weights: Vector | None = None
    downlink: Tensors = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Server:
    """What a rule may use besides the cohort.

    Attributes:
        model: [d], the model that the cohort started from.
        rng: a stream of this round, for rules that add noise.
    """

    model: Vector
    rng: torch.Generator


class Strategy(Protocol):
    """A server rule: frozen hyperparameters, explicit state; one file in strategies/."""

    def init(self, model: Vector) -> Tensors:
        """The state before round 1, as named tensors; empty for a rule without state."""
        ...

    def step(self, state: Tensors, cohort: Cohort, server: Server) -> tuple[Tensors, Decision]:
        """The new state and the decision; neither argument is changed."""
        ...


class Attack(Protocol):
    """An adversary: frozen hyperparameters, explicit state; one file in attacks/.

    An attack implements the hooks that it needs; `fedsim.threat.Passive` supplies the others.
    """

    @property
    def knows(self) -> Any:
        """The `fedsim.threat.Knowledge` that it needs; the engine hides the rest."""
        ...

    def init(self, members: Sequence[int], rng: torch.Generator) -> Tensors:
        """State before round 1, given the malicious partitions."""
        ...

    def corrupt(
        self, state: Tensors, member: int, program: LocalProgram, data: ClientData
    ) -> tuple[LocalProgram, ClientData]:
        """The program and data of one malicious client; `member` counts the colluders from 0."""
        ...

    def craft(self, state: Tensors, view: Any, rng: torch.Generator) -> Matrix:
        """[m, d]: the rows that the malicious clients send in place of `view.own`."""
        ...

    def poison(self, state: Tensors, batch: Batch) -> Batch:
        """The batch with the attack's trigger or labels; used to measure success."""
        ...
