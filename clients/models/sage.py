"""GraphSAGE with mean aggregation over all neighbours.

Hamilton et al., "Inductive Representation Learning on Large Graphs", NeurIPS 2017, Algorithm 1. The
weight on the concatenation (own state, neighbours' mean) is written as two weights, which is the same
map. Neighbours are not sampled. Line 7, scaling states to unit length, is an option.
"""

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch_geometric.nn import SAGEConv

from clients.models.convolution_stack import ConvolutionStack
from clients.models.graph_table import GraphTable
from clients.models.stacked_edges import along, mean_of_neighbours
from clients.models.stacked_layers import linear
from fedsim.contracts import DataSpec, StackedBatch, Tensors


@dataclass(frozen=True, kw_only=True)
class Sage(GraphTable):
    """Nodes: the last convolution gives the logits. Graphs: a readout and a linear layer follow it.

    Attributes:
        normalize: scale the output of every convolution to unit length, before the activation.
    """

    name: ClassVar[str] = "sage"

    normalize: bool = False

    def module(self, spec: DataSpec) -> nn.Module:
        """SAGE convolutions one after the other."""
        return SageModel.of(self, partial(SAGEConv, normalize=self.normalize), spec)


class SageModel(ConvolutionStack):
    """A stack of SAGE convolutions, all of which scale their output to unit length or none does."""

    def convolve(self, tensors: Tensors, name: str, states: Tensor, batch: StackedBatch) -> Tensor:
        """Both weights in one product; then the mean of neighbours, which the order does not change."""
        weights = [tensors[f"{name}.{side}.weight"] for side in ("lin_l", "lin_r")]
        neighbours, own = linear(batch, states, torch.cat(weights, dim=1)).chunk(2, dim=2)
        bias = tensors[f"{name}.lin_l.bias"].unsqueeze(1)
        result = along(mean_of_neighbours(batch), neighbours) + bias + own
        return functional.normalize(result, dim=-1) if self.convolutions_normalize else result

    @property
    def convolutions_normalize(self) -> bool:
        """Do the convolutions scale their outputs?"""
        first: SAGEConv = self.convolutions[0] if len(self.convolutions) else self.head
        return bool(first.normalize)
