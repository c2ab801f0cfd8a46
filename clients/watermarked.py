"""An owner among the clients: its program presses a key of its own into the model that all share.

Downer et al., "Watermarking Graph Neural Networks via Explanations for Ownership Protection", ICML 2026,
brought into a federation. Any client method for nodes is wrapped; owners add the mark's loss to every phase
that trains shared tensors, and combine the gradients by PCGrad. Other clients run the wrapped method as it
is. Sets, features and projection are private tensors: nothing of the key leaves the owner, but what its
update holds.

`fedsim.watermark.embedding` says what the mark is; the key is made from the owner's own training nodes.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fedsim import rng
from fedsim.contracts import (
    Batch,
    ClientInfo,
    ClientMethod,
    Combine,
    Context,
    LocalProgram,
    Losses,
    Matrix,
    Optimizer,
    Phase,
    Tensors,
    Vector,
)
from fedsim.errors import ConfigError
from fedsim.training.functional import FunctionalModel, parameter_names
from fedsim.training.method import Diagnosing
from fedsim.watermark.explanation import Projection, projection
from fedsim.watermark.key import Key, make_key, own_secret
from fedsim.watermark.loss import embedding_loss, pcgrad
from fedsim.watermark.statistics import KeyMatch, key_match
from fedsim.watermark.subgraphs import SHARE, Graph, draw_sets, set_size

PRIVATE = "watermark/"
FEWEST_NODES = 20  # of a set: 0.005 of a client's nodes are too few to explain anything


@dataclass(frozen=True, kw_only=True)
class Watermarked:
    """A client method with owners.

    Attributes:
        method: what every client does.
        secret_file: holds 32 bytes in hexadecimal; read where an owner lives, and nowhere else.
        owners: partitions that hold a key, each one of its own (drawn from the secret and its number).
        owner: a name; with several owners their numbers are added.
        date: ISO 8601, of the commitment.
        last_round: after it the owners train without the mark; unset: never.
        strength: r, the weight of the mark's loss.
        margin: epsilon, in units of a coefficient.
        pace: factor on an owner's learning rate while it marks. One update of many is diluted by the mean;
            above 1 the owner pulls harder.
        sets: T.
        share: of the owner's training nodes in a set, but 20 nodes at least.
        marks: M; unset: by the paper's rule.
        classify_marked: do the key's nodes take part in the task's loss?
        report: tell the server the owner's p-value at every evaluation (`diagnostic_watermark_...`); it
            gives the key's existence away, so it is for simulations.
        seed: draws the sets.
    """

    method: ClientMethod
    secret_file: str
    owners: tuple[int, ...] = (0,)
    owner: str = "owner"
    date: str = "2026-01-01"
    last_round: int | None = None
    strength: float = 100.0
    margin: float = 0.01
    pace: float = 1.0
    sets: int = 4
    share: float = SHARE
    marks: int | None = None
    classify_marked: bool = False
    report: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.owners or len(set(self.owners)) != len(self.owners) or min(self.owners) < 0:
            raise ConfigError(f"owners must be different partitions, found {list(self.owners)}.")
        if not 0 < self.strength < math.inf:
            raise ConfigError(f"strength must be above 0 and finite, found {self.strength}.")
        if not 0 <= self.margin < math.inf:
            raise ConfigError(f"margin must be at least 0 and finite, found {self.margin}.")
        if not 0 < self.pace < math.inf:
            raise ConfigError(f"pace must be above 0 and finite, found {self.pace}.")
        if not 0 < self.share < 1:
            raise ConfigError(f"share must be above 0 and below 1, found {self.share}.")
        if self.sets < 2:
            raise ConfigError(f"sets must be at least 2, found {self.sets}.")

    @property
    def federates(self) -> bool:
        """As the wrapped method."""
        return bool(getattr(self.method, "federates", True))

    def init(self, client: ClientInfo, rng: torch.Generator) -> Tensors:
        """What the wrapped method keeps, and for an owner the mark."""
        kept = dict(self.method.init(client, rng))
        if client.partition in self.owners:
            kept |= mark_tensors(*self.key_of(client), like=client.data.train.batch().x)
        return kept

    def program(self, client: ClientInfo, round: int) -> LocalProgram:
        """The wrapped method's program; an owner's, with the mark, runs alone (no stack)."""
        program = self.method.program(client, round)
        if client.partition not in self.owners:
            return program
        phases, over = program.phases, self.last_round is not None and round > self.last_round
        if not over:
            phases = tuple(self._marked(program, phase) for phase in phases)
        return replace(
            program,
            phases=tuple(_sparing_the_mark(phase) for phase in phases),
            tune=tuple(_sparing_the_mark(phase) for phase in program.tune),
            stack=None,
        )

    def finish(
        self, before: Tensors, after: Tensors, private: Tensors, downlink: Tensors, steps: int
    ) -> tuple[Tensors, Tensors]:
        """As the wrapped method, which never sees the mark."""
        own = {name: tensor for name, tensor in private.items() if name.startswith(PRIVATE)}
        rest = {name: tensor for name, tensor in private.items() if name not in own}
        uplink, kept = self.method.finish(
            before, {name: t for name, t in after.items() if name not in own}, rest, downlink, steps
        )
        return uplink, {**kept, **own}

    def diagnose(self, client: ClientInfo, model: nn.Module, tensors: Tensors) -> Mapping[str, float]:
        """The wrapped method's numbers, and an owner's own verdict on the model it would use."""
        told = self.method.diagnose(client, model, tensors) if isinstance(self.method, Diagnosing) else {}
        if not self.report or client.partition not in self.owners:
            return told
        match = owner_match(model, tensors, tensors)
        return {**told, "watermark_log10_p": math.log10(match.p), "watermark_z": match.z}

    def key_of(self, client: ClientInfo) -> tuple[Key, Graph]:
        """An owner's key and the graph that it is for: functions of its data, the secret and the seed.

        Raises:
            ConfigError: the secret cannot be read, or the client has too few training nodes.
        """
        graph, nodes = own_graph(client)
        size = set_size(len(nodes), self.share, FEWEST_NODES)
        draws = rng.stream(self.seed, "watermark.sets", 0, client.partition)
        try:
            drawn = draw_sets(nodes, self.sets, size, draws)
        except ConfigError as error:
            raise ConfigError(f"client.owners: client {client.partition}: {error}") from None
        key = make_key(
            graph,
            drawn,
            owner=self.owner if len(self.owners) == 1 else f"{self.owner} {client.partition}",
            date=self.date,
            secret=own_secret(Path(self.secret_file), client.partition),
            seed=self.seed,
            marks=self.marks,
        )
        return key, graph

    def _marked(self, program: LocalProgram, phase: Phase) -> Phase:
        """A phase with the mark's loss as its last one; a phase of private tensors alone stays as it is."""
        names = parameter_names(program.model)
        if not any(phase.trains(name) and program.is_shared(name) for name in names):
            return phase
        if phase.per_example:
            raise ConfigError("client.method: trains on single examples, which nodes are not.")
        # A run of parameters is told by its optimiser's identity: equal ones must stay one and the same.
        pace = {
            id(one): paced(one, self.pace) for one in (phase.optimizer, *(one for _, one in phase.groups))
        }
        return replace(
            phase,
            losses=self._losses(phase.losses, program.model),
            combine=with_mark(phase.combine),
            optimizer=pace[id(phase.optimizer)],
            groups=tuple((claims, pace[id(one)]) for claims, one in phase.groups),
        )

    def _losses(self, task: Losses, model: nn.Module) -> Losses:
        call = FunctionalModel(model)

        def losses(tensors: Tensors, batch: Batch, context: Context) -> tuple[Tensor, Tensors]:
            mask = batch.mask
            if mask is not None and not self.classify_marked:
                mask = mask.index_fill(0, context.private[PRIVATE + "nodes"], value=False)
            own, buffers = task(tensors, batch._replace(mask=mask), context)
            mark = self.strength * mark_loss(call, tensors, context.private, self.margin)
            return torch.cat([own.reshape(-1), mark.reshape(1).to(own.dtype)]), buffers

        return losses


def _sparing_the_mark(phase: Phase) -> Phase:
    """A phase that may train any tensor but the mark's own."""
    return replace(phase, trains=lambda name: phase.trains(name) and not name.startswith(PRIVATE))


def own_graph(client: ClientInfo) -> tuple[Graph, Tensor]:
    """A client's graph, and its training nodes [k].

    Raises:
        ConfigError: it has rows, or graphs without number.
    """
    batch = client.data.train.batch()
    if client.spec.task != "nodes" or batch.mask is None or batch.edge_index is None:
        raise ConfigError(f"client.kind: a watermark needs nodes, but the data are {client.spec.task}.")
    graph = Graph(batch.x.float().cpu(), batch.edge_index.cpu(), batch.y.cpu(), client.spec.classes)
    return graph, batch.mask.nonzero()[:, 0].cpu()


def mark_tensors(key: Key, graph: Graph, like: Tensor) -> dict[str, Tensor]:
    """A key as private tensors: what its sets are fed as, their projection, and the signs.

    Args:
        key: the owner's.
        graph: that it is for.
        like: of the type and on the device that models are fed with.
    """
    sets = key.subgraphs(graph)
    x, edges = sets.together()
    found = {
        "x": x.to(like.dtype),
        "edges": edges,
        "nodes": key.nodes.flatten(),
        "projection": projection(sets.x, torch.tensor(key.features)).matrix,
        "signs": key.signs,
    }
    return {PRIVATE + name: tensor.to(like.device) for name, tensor in found.items()}


def owner_match(model: nn.Module, tensors: Tensors, mark: Tensors) -> KeyMatch:
    """The matches of the key that `mark` holds with a model's answers: an owner's verdict on its own.

    Args:
        model: the template.
        tensors: of the model that is suspected.
        mark: an owner's private tensors.
    """
    with torch.no_grad():
        seen = _explained(FunctionalModel(model), tensors, mark)
    return key_match(seen.sign().to(torch.int8).cpu(), mark[PRIVATE + "signs"].cpu())


def mark_loss(call: FunctionalModel, tensors: Tensors, mark: Tensors, margin: float) -> Tensor:
    """[]: the embedding loss of an owner's private tensors."""
    answers = _answers(call, tensors, mark)
    seen = Projection(mark[PRIVATE + "projection"], answers.shape[1])
    return embedding_loss(seen, mark[PRIVATE + "signs"], answers, margin)


def with_mark(task: Combine) -> Combine:
    """The task's own combination of its gradients, and PCGrad of that with the mark's."""

    def combine(gradients: Matrix, context: Context) -> Vector:
        return pcgrad(torch.stack([task(gradients[:-1], context), gradients[-1]]))

    return combine


def paced(optimizer: Optimizer, pace: float) -> Optimizer:
    """The optimiser with `pace` times its learning rate."""
    frozen: Any = optimizer  # a dataclass, as every plugin is
    changed: Optimizer = replace(frozen, learning_rate=optimizer.learning_rate * pace)
    return changed


def _answers(call: FunctionalModel, tensors: Tensors, mark: Tensors) -> Tensor:
    """[t, n, c] float64: the answers on the sets, each alone in one graph of unconnected blocks."""
    x, edges = mark[PRIVATE + "x"], mark[PRIVATE + "edges"]
    unknown = torch.zeros(len(x), dtype=torch.int64, device=x.device)
    logits, _ = call(tensors, Batch(x, unknown, edge_index=edges))
    return logits.double().softmax(dim=-1).view(len(mark[PRIVATE + "projection"]), -1, logits.shape[-1])


def _explained(call: FunctionalModel, tensors: Tensors, mark: Tensors) -> Tensor:
    answers = _answers(call, tensors, mark)
    return Projection(mark[PRIVATE + "projection"], answers.shape[1]).explain(answers)
