"""Training a model on its task and on an owner's key at once."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedsim import rng
from fedsim.contracts import Optimizer, Tensors
from fedsim.errors import ConfigError
from fedsim.training.functional import model_tensors
from fedsim.training.optimizers import Adam
from fedsim.watermark.descent import descend, summed
from fedsim.watermark.explanation import Projection, projection
from fedsim.watermark.forward import GraphModel
from fedsim.watermark.key import Key
from fedsim.watermark.loss import embedding_loss, pcgrad
from fedsim.watermark.subgraphs import Graph, Split, draw_sets, induced, without


@dataclass(frozen=True, kw_only=True)
class Embedding:
    """How a key is pressed into a model; the defaults are the paper's for Amazon Photo.

    Attributes:
        epochs: steps over all training nodes.
        optimizer: of all tensors.
        strength: r, the weight of the mark's loss.
        margin: epsilon, how far a coefficient shall lie on its side of 0.
        combine: of the two gradients: "pcgrad" or "sum".
        classify_marked: do the key's nodes take part in the task's loss? The paper says no.
        cure: this many other sets of training nodes, fed alone, join the task's loss: without them, a
            marked model fails on nodes without neighbours.
    """

    epochs: int = 300
    optimizer: Optimizer = field(default_factory=lambda: Adam(learning_rate=2e-4))
    strength: float = 100.0
    margin: float = 0.01
    combine: Literal["pcgrad", "sum"] = "pcgrad"
    classify_marked: bool = False
    cure: int = 0

    def __post_init__(self) -> None:
        if self.epochs < 1:
            raise ConfigError(f"epochs must be at least 1, found {self.epochs}.")
        if not 0 < self.strength < math.inf:
            raise ConfigError(f"strength must be above 0 and finite, found {self.strength}.")
        if not 0 <= self.margin < math.inf:
            raise ConfigError(f"margin must be at least 0 and finite, found {self.margin}.")
        if self.cure < 0:
            raise ConfigError(f"cure must be at least 0, found {self.cure}.")


@dataclass(frozen=True)
class Mark:
    """A key made ready for training: the subgraphs of its sets and their projection."""

    model: GraphModel
    projection: Projection
    signs: Tensor

    @classmethod
    def of(cls, model: nn.Module, key: Key, graph: Graph) -> "Mark":
        """The mark of a key in models of this template."""
        sets = key.subgraphs(graph)
        return cls(
            GraphModel(model, *sets.together()),
            projection(sets.x, torch.tensor(key.features)),
            key.signs,
        )

    def probabilities(self, tensors: Tensors) -> Tensor:
        """[t, n, c] float64."""
        found = self.model.probabilities(tensors)
        return found.view(len(self.projection.matrix), self.projection.nodes, -1)

    def loss(self, tensors: Tensors, margin: float) -> Tensor:
        """[]: the embedding loss."""
        return embedding_loss(self.projection, self.signs, self.probabilities(tensors), margin)


@dataclass(frozen=True)
class Task:
    """Classification of a graph's nodes, and perhaps of nodes fed alone.

    Attributes:
        model: on the whole graph.
        nodes: [k] int64, those that count.
        y: [v] int64.
        alone: a model on sets fed alone, and the labels of their nodes; None: there are none.
    """

    model: GraphModel
    nodes: Tensor
    y: Tensor
    alone: tuple[GraphModel, Tensor] | None = None

    def loss(self, tensors: Tensors, generator: torch.Generator) -> Tensor:
        """[]: cross-entropy, with dropout masks from `generator` on the whole graph."""
        logits = self.model.logits(tensors, self.model.draw(generator))
        loss = functional.cross_entropy(logits[self.nodes], self.y[self.nodes])
        if self.alone is not None:
            loss = loss + functional.cross_entropy(self.alone[0].logits(tensors), self.alone[1])
        return loss


def train(
    model: nn.Module,
    graph: Graph,
    split: Split,
    options: Embedding,
    *,
    keys: Sequence[Key] = (),
    seed: int = 0,
    start: Tensors | None = None,
) -> dict[str, Tensor]:
    """A model trained on its task, and marked with every key given; without keys, an unmarked control.

    Args:
        model: the template; its tensors are the start unless `start` is given.
        graph: the whole of it.
        split: of its nodes.
        options: how.
        keys: of one owner or several.
        seed: of dropout and of the cure's sets.
        start: tensors to go on from.

    Raises:
        ConfigError: a key does not fit the graph, or there are too few nodes for the cure.
    """
    taken = torch.cat([key.nodes.flatten() for key in keys]) if keys else torch.zeros(0, dtype=torch.int64)
    marks = [Mark.of(model, key, graph) for key in keys]
    nodes = split.train if options.classify_marked else without(split.train, taken)
    size = keys[0].nodes.shape[1] if keys else 0
    alone = _alone(model, graph, without(split.train, taken), options.cure, size, seed) if keys else None
    task = Task(GraphModel(model, graph.x, graph.edge_index), nodes, graph.y, alone)
    generator = rng.stream(seed, "watermark.dropout")

    def losses(tensors: Tensors, step: int) -> Tensor:
        own = [options.strength * mark.loss(tensors, options.margin) for mark in marks]
        first = task.loss(tensors, generator)
        return torch.stack([first, *(one.to(first.dtype) for one in own)])

    combine = pcgrad if options.combine == "pcgrad" else summed
    return descend(start or model_tensors(model), losses, options.optimizer, options.epochs, combine)


def _alone(
    model: nn.Module, graph: Graph, nodes: Tensor, sets: int, size: int, seed: int
) -> tuple[GraphModel, Tensor] | None:
    """Random sets of nodes, fed alone, and their labels."""
    if not sets:
        return None
    drawn = draw_sets(nodes, sets, size, rng.stream(seed, "watermark.cure"))
    found = induced(graph.x, graph.edge_index, drawn)
    return GraphModel(model, *found.together()), graph.y[drawn.flatten()]


def accuracy(model: GraphModel, tensors: Tensors, y: Tensor, nodes: Tensor) -> float:
    """The share of `nodes` whose class is the most probable one."""
    with torch.no_grad():
        return float((model.logits(tensors)[nodes].argmax(dim=-1) == y[nodes]).double().mean())
