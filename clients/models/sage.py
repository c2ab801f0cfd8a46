"""GraphSAGE with mean aggregation over all neighbours.

Hamilton et al., "Inductive Representation Learning on Large Graphs", NeurIPS 2017, Algorithm 1. The
weight on the concatenation (own state, neighbours' mean) is written as two weights, which is the same
map. Neighbours are not sampled. Line 7, scaling states to unit length, is an option.
"""

from dataclasses import dataclass
from functools import partial

from torch import nn
from torch_geometric.nn import SAGEConv

from clients.models.checks import at_least, is_rate, require_task
from clients.models.convolution_stack import ConvolutionStack
from clients.models.readout import Readout
from fedsim.contracts import DataSpec


@dataclass(frozen=True, kw_only=True)
class Sage:
    """Nodes: the last convolution gives the logits. Graphs: a readout and a linear layer follow it.

    Attributes:
        hidden: units of every hidden state.
        layers: convolutions.
        dropout: share of hidden units dropped in training.
        normalize: scale the output of every convolution to unit length, before the activation.
        readout: how a graph's node states become one; of no effect on nodes.
    """

    hidden: int = 64
    layers: int = 2
    dropout: float = 0.5
    normalize: bool = False
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
        require_task("sage", spec, "nodes", "graphs")
        return ConvolutionStack(
            partial(SAGEConv, normalize=self.normalize),
            spec,
            hidden=self.hidden,
            layers=self.layers,
            dropout=self.dropout,
            readout=self.readout,
        )
