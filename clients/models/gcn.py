"""Graph convolutional network.

Kipf and Welling, "Semi-Supervised Classification with Graph Convolutional Networks", ICLR 2017,
equation 2. The paper drops inputs too; here, as in the public code of FED-PUB (Baek et al., ICML 2023),
only hidden states are dropped.
"""

from dataclasses import dataclass
from functools import partial

from torch import Tensor, nn
from torch_geometric.nn import GCNConv
from torch_geometric.nn.conv.gcn_conv import gcn_norm

from clients.models.checks import at_least, is_rate, require_task
from clients.models.convolution_stack import ConvolutionStack
from clients.models.readout import Readout
from clients.models.stacked import linear
from clients.models.stacked_edges import along, normalised
from fedsim.contracts import Batch, DataSpec, StackedBatch, Tensors


@dataclass(frozen=True, kw_only=True)
class Gcn:
    """Nodes: the last convolution gives the logits. Graphs: a readout and a linear layer follow it.

    Attributes:
        hidden: units of every hidden state.
        layers: convolutions.
        dropout: share of hidden units dropped in training.
        readout: how a graph's node states become one; of no effect on nodes.
    """

    hidden: int = 64
    layers: int = 2
    dropout: float = 0.5
    readout: Readout = "mean"

    def __post_init__(self) -> None:
        at_least("hidden", self.hidden, 1)
        at_least("layers", self.layers, 1)
        is_rate("dropout", self.dropout)

    def build(self, spec: DataSpec) -> nn.Module:
        """The module for nodes or graphs.

        Raises:
            ConfigError: the data are rows.
        """
        require_task("gcn", spec, "nodes", "graphs")
        return GcnModel(
            partial(GCNConv, normalize=False),
            spec,
            hidden=self.hidden,
            layers=self.layers,
            dropout=self.dropout,
            readout=self.readout,
        )


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
