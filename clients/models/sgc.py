"""Simplified graph convolution: several hops of neighbours, then one linear map.

Wu et al., "Simplifying Graph Convolutional Networks", ICML 2019, equation 8: softmax(S^K X W) with GCN's
normalised adjacency S. One layer on nodes is the paper's model; more layers put activations between, which
the paper does not, but work that compares SGC with networks of the same depth does.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch_geometric.nn import Linear

from clients.models.checks import at_least
from clients.models.gcn import GcnModel
from clients.models.graph_table import GraphTable
from clients.models.stacked_edges import along, normalised
from clients.models.stacked_layers import linear
from fedsim.contracts import DataSpec, StackedBatch, Tensors


@dataclass(frozen=True, kw_only=True)
class Sgc(GraphTable):
    """Nodes: the last convolution gives the logits. Graphs: a readout and a linear layer follow it.

    Attributes:
        layers: convolutions; 1 on nodes is the paper's model.
        hops: K, products with the adjacency in each convolution.
    """

    name: ClassVar[str] = "sgc"

    layers: int = 1
    hops: int = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least("hops", self.hops, 1)

    def module(self, spec: DataSpec) -> nn.Module:
        """Convolutions of `hops` hops each."""
        return SgcModel.of(self, partial(SgcConvolution, hops=self.hops), spec)


class SgcConvolution(nn.Module):
    """S^K X W + b.

    Args:
        width: in.
        out: width out.
        hops: K.
    """

    def __init__(self, width: int, out: int, hops: int) -> None:
        super().__init__()
        self.lin = Linear(width, out, bias=False, weight_initializer="glorot")
        self.bias = nn.Parameter(torch.zeros(out))
        self.hops = hops

    def forward(self, states: Tensor, edges: Tensor, weights: Tensor) -> Tensor:
        """[v, in] -> [v, out]; edges [2, e + v] with self-loops, and their weights [e + v]."""
        found: Tensor = self.lin(states)
        for _ in range(self.hops):
            messages = found[edges[0]] * weights.unsqueeze(1)
            found = torch.zeros_like(found).index_add(0, edges[1], messages)
        return found + self.bias


class SgcModel(GcnModel):
    """A stack whose convolutions all go as many hops."""

    def convolve(self, tensors: Tensors, name: str, states: Tensor, batch: StackedBatch) -> Tensor:
        """A product with each client's weight, then `hops` with the adjacency of all."""
        found = linear(batch, states, tensors[f"{name}.lin.weight"])
        for _ in range(self.hops):
            found = along(normalised(batch), found)
        return found + tensors[f"{name}.bias"].unsqueeze(1)

    @property
    def hops(self) -> int:
        """K."""
        first: Any = self.convolutions[0] if len(self.convolutions) else self.head
        return int(first.hops)
