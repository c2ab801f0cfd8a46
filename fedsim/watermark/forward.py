"""A model on one graph that stays the same: its sparse forms are made once."""

from functools import cached_property

import torch
from torch import Tensor, nn

from fedsim.contracts import Batch, StackedBatch, Tensors
from fedsim.data.examples import Nodes
from fedsim.training.functional import FunctionalModel


class GraphModel:
    """A template on one graph, called with any tensors.

    Models that offer `forward_stacked` are called through it, as a stack of one: features of which most
    are zero, and the adjacency, then stay sparse.
    """

    def __init__(self, model: nn.Module, x: Tensor, edge_index: Tensor) -> None:
        """Bind a template and a graph: x [v, f], edge_index [2, e]."""
        self._model = model
        self._call = FunctionalModel(model)
        self._x, self._edges = x, edge_index

    def logits(self, tensors: Tensors, noise: Tensors | None = None) -> Tensor:
        """[v, c]; gradients flow to `tensors`."""
        forward_stacked = getattr(self._model, "forward_stacked", None)
        if forward_stacked is None:
            return self._call(tensors, self._batch, noise)[0]
        ones = {name: tensor.unsqueeze(0) for name, tensor in tensors.items()}
        masks = {name: mask.unsqueeze(0) for name, mask in (noise or {}).items()}
        found: Tensor = forward_stacked(ones, self._stacked, masks or None)
        return found[0]

    def probabilities(self, tensors: Tensors) -> Tensor:
        """[v, c] float64, without dropout."""
        return self.logits(tensors).double().softmax(dim=-1)

    def draw(self, rng: torch.Generator) -> dict[str, Tensor]:
        """The noise of one training step."""
        ask = getattr(self._model, "draw", None)
        return {} if ask is None else ask(self._batch, rng)

    @cached_property
    def _batch(self) -> Batch:
        return Batch(self._x, torch.zeros(len(self._x), dtype=torch.int64), edge_index=self._edges)

    @cached_property
    def _stacked(self) -> StackedBatch:
        y = torch.zeros(len(self._x), dtype=torch.int64)
        nodes = Nodes(self._x, self._edges, y, torch.arange(0), self._x.dtype)
        return Nodes.together([nodes]).batch([0], None)
