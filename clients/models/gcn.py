"""Graph convolutional network.

Kipf and Welling, "Semi-Supervised Classification with Graph Convolutional Networks", ICLR 2017,
equation 2. The paper drops inputs too; here, as in the public code of FED-PUB (Baek et al., ICML 2023),
only hidden states are dropped.
"""

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from torch import Tensor, nn
from torch_geometric.nn import GCNConv
from torch_geometric.nn.conv.gcn_conv import gcn_norm

from clients.models.convolution_stack import ConvolutionStack
from clients.models.graph_table import GraphTable
from clients.models.stacked_edges import along, normalised
from clients.models.stacked_layers import linear
from fedsim.contracts import Batch, DataSpec, StackedBatch, Tensors


@dataclass(frozen=True, kw_only=True)
class Gcn(GraphTable):
    """Nodes: the last convolution gives the logits. Graphs: a readout and a linear layer follow it."""

    name: ClassVar[str] = "gcn"

    def module(self, spec: DataSpec) -> nn.Module:
        """Convolutions that leave the normalisation to the stack."""
        return GcnModel.of(self, partial(GCNConv, normalize=False), spec)


class GcnModel(ConvolutionStack):
    """A stack that normalises the adjacency once per batch, and never keeps it for the next."""

    def edges(self, batch: Batch) -> tuple[Tensor | None, ...]:
        """Edges and self-loops [2, e + v] with their weights 1 / sqrt(degree_i degree_j) [e + v]."""
        index, weight = gcn_norm(batch.edge_index, num_nodes=len(batch.x), dtype=batch.x.dtype)
        return index, weight

    def convolve(self, tensors: Tensors, name: str, states: Tensor, batch: StackedBatch) -> Tensor:
        """A product with each client's weight, then one with the adjacency of all."""
        projected = linear(batch, states, tensors[f"{name}.lin.weight"])
        return along(normalised(batch), projected) + tensors[f"{name}.bias"].unsqueeze(1)
