"""Marks in models that classify whole graphs.

Downer et al., ICML 2026, the graph-level variant: a set is a collection of graphs, a graph's features are the
mean of its nodes', and its answer is the model's for the graph. The rest is as for nodes.

Small molecules have few features (MUTAG: 7), so a key that is the same for all collections, as in the paper,
has few positions that count: with M = 6 no model can reach p below 1 / 20. `shared = False` gives every
collection signs of its own, T M in all, which the paper does not do; then p can be as small as is asked.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedsim.contracts import Batch, Tensors
from fedsim.data.examples import Graphs
from fedsim.params import digest
from fedsim.training.functional import FunctionalModel
from fedsim.watermark.explanation import Projection, explain, projection
from fedsim.watermark.key import derive_signs
from fedsim.watermark.loss import embedding_loss
from fedsim.watermark.marks import marked_features
from fedsim.watermark.statistics import KeyMatch, key_match


@dataclass(frozen=True)
class Collections:
    """T collections of n graphs.

    Attributes:
        x: [T, n, f] float64, mean features of each graph.
        batch: all their graphs, in order; models of graphs see each graph alone.
    """

    x: Tensor
    batch: Batch

    @classmethod
    def of(cls, graphs: Graphs, sets: Tensor) -> "Collections":
        """The collections of graphs numbered `sets` [T, n]."""
        batch = graphs.batch(sets.flatten())
        if batch.graph is None:
            raise TypeError("Graphs make batches that say whose each node is.")
        counts = torch.bincount(batch.graph, minlength=sets.numel()).clamp(min=1)  # a graph without nodes: 0
        sums = torch.zeros(sets.numel(), batch.x.shape[1], dtype=torch.float64)
        sums.index_add_(0, batch.graph, batch.x.double())
        return cls((sums / counts.unsqueeze(1)).view(*sets.shape, -1), batch)

    def answers(self, model: nn.Module, tensors: Tensors) -> Tensor:
        """[T, n, c] float64 probabilities."""
        logits, _ = FunctionalModel(model)(tensors, self.batch)
        return logits.double().softmax(dim=-1).view(*self.x.shape[:2], -1)


@dataclass(frozen=True)
class GraphKey:
    """A key for collections of graphs.

    Attributes:
        sets: [T, n] int64, numbers of graphs.
        features: [M] int64.
        signs: [T, M] float64 of -1 and 1; equal rows where they are shared.
        shared: are they?
    """

    sets: Tensor
    features: Tensor
    signs: Tensor
    shared: bool

    @classmethod
    def of(
        cls, graphs: Graphs, sets: Tensor, *, owner: str, date: str, secret: str, shared: bool, marks: int
    ) -> "GraphKey":
        """The key for some collections; its signs follow from all else, as those of `fedsim.watermark.key`.

        Raises:
            ConfigError: fewer features than marks are in use.
        """
        found = Collections.of(graphs, sets)
        features = marked_features(found.x, marks)
        statement = {
            "format": "fedsim watermark graph key 1",
            "owner": owner,
            "date": date,
            "shared": shared,
            "sets": sets.tolist(),
            "features": features.tolist(),
            "data": digest({"x": found.batch.x.float(), "edges": _edges(found.batch)}),
        }
        count = marks if shared else marks * len(sets)
        signs = derive_signs(bytes.fromhex(secret), statement, count).view(-1, marks)
        return cls(sets, features, signs.expand(len(sets), -1), shared)

    def match(self, seen: Tensor) -> KeyMatch:
        """The matches with signs [T, M], and their exact p-value over keys drawn anew."""
        if self.shared:
            return key_match(seen, self.signs[0])
        return key_match(seen.reshape(1, -1), self.signs.reshape(-1))


@dataclass(frozen=True)
class GraphMark:
    """A key made ready for training."""

    collections: Collections
    projection: Projection
    key: GraphKey

    @classmethod
    def of(cls, graphs: Graphs, key: GraphKey) -> "GraphMark":
        """The mark of a key."""
        found = Collections.of(graphs, key.sets)
        return cls(found, projection(found.x, key.features), key)

    def loss(self, model: nn.Module, tensors: Tensors, margin: float) -> Tensor:
        """[]: the embedding loss; gradients flow to `tensors`."""
        answers = self.collections.answers(model, tensors)
        return embedding_loss(self.projection, self.key.signs, answers, margin)

    def signs(self, model: nn.Module, tensors: Tensors) -> Tensor:
        """[T, F] int8: the signs of the explanations, as verification sees them."""
        with torch.no_grad():
            return explain(self.collections.x, self.collections.answers(model, tensors)).sign().to(torch.int8)

    def match(self, model: nn.Module, tensors: Tensors) -> KeyMatch:
        """The verdict's statistic."""
        return self.key.match(self.signs(model, tensors)[:, self.key.features])


def _edges(batch: Batch) -> Tensor:
    if batch.edge_index is None:
        raise TypeError("A batch of graphs has edges.")
    return batch.edge_index
