"""The Euclidean controls of FlatLand: a graph network with one private constant input column per layer.

x' = A (m 1 + M x + b): as many private numbers as the Lorentz model has, in the same places, but no
geometry. With `decoder = "distance"` it has FlatLand's decoder too: logit_k = b_k - |x - c_k|^2.
"""

from dataclasses import dataclass
from typing import Literal

from torch import Tensor, nn

from clients.flatland.lorentz import Activation
from clients.flatland.stack import DecoupledStack, Watch
from clients.models.checks import at_least, is_rate, require_task
from clients.models.stacked_edges import along, normalised, pooling
from clients.models.stacked_layers import inputs, linear
from fedsim.contracts import DataSpec, StackedBatch, Tensors


@dataclass(frozen=True, kw_only=True)
class PrivateColumn:
    """A stack of Euclidean convolutions; see `Lorentz` for the attributes.

    Attributes:
        hidden: width of every state.
        layers: convolutions; unset: 2 on nodes, 3 on graphs.
        dropout: share of units dropped in training.
        activation: after every convolution but the last.
        decoder: a linear layer, or distances to class points.
    """

    hidden: int = 64
    layers: int | None = None
    dropout: float = 0.5
    activation: Activation = "relu"
    decoder: Literal["linear", "distance"] = "linear"

    def __post_init__(self) -> None:
        at_least("hidden", self.hidden, 1)
        at_least("layers", 1 if self.layers is None else self.layers, 1)
        is_rate("dropout", self.dropout)

    def build(self, spec: DataSpec) -> nn.Module:
        """The module for nodes or graphs.

        Raises:
            ConfigError: the data are rows.
        """
        require_task("private_column", spec, "nodes", "graphs")
        return ColumnModel(self, spec)


class ColumnModel(DecoupledStack):
    """States are vectors [k, v, d]."""

    def __init__(self, table: PrivateColumn, spec: DataSpec) -> None:
        super().__init__(
            spec,
            hidden=table.hidden,
            layers=table.layers,
            dropout=table.dropout,
            linear_head=table.decoder == "linear",
        )
        self.table = table

    def enter(self, tensors: Tensors, batch: StackedBatch) -> Tensor:
        """The features as they are."""
        return inputs(batch)

    def convolve(
        self, tensors: Tensors, index: int, states: Tensor, batch: StackedBatch, watch: Watch | None
    ) -> Tensor:
        """The map with its constant column, then a product with the normalised adjacency."""
        name = f"convolutions.{index}"
        spatial = linear(batch, states, tensors[f"{name}.space"])
        constant = tensors[f"{name}.time"].unsqueeze(1)
        if watch is not None:
            watch[f"time_norm_{index}"] = constant.norm(dim=-1).mean(dim=1)
            watch[f"space_norm_{index}"] = spatial.norm(dim=-1).mean(dim=1)
        return along(normalised(batch), spatial + constant + tensors[f"{name}.bias"].unsqueeze(1))

    def activate(self, tensors: Tensors, index: int, states: Tensor, mask: Tensor | None) -> Tensor:
        """The activation and the mask."""
        active = states.relu() if self.table.activation == "relu" else states
        return active if mask is None else active * mask

    def read_out(self, tensors: Tensors, states: Tensor, batch: StackedBatch) -> Tensor:
        """The mean over each graph's nodes."""
        return along(pooling(batch, "mean"), states)

    def decode(self, tensors: Tensors, states: Tensor) -> Tensor:
        """A linear layer, or distances to class points."""
        bias = tensors["head.bias"].unsqueeze(1)
        if self.table.decoder == "linear":
            return states @ tensors["head.weight"].transpose(1, 2) + bias
        points = tensors["head.points"]
        squares = states.square().sum(dim=-1, keepdim=True) + points.square().sum(dim=-1).unsqueeze(1)
        return bias - (squares - 2 * states @ points.transpose(1, 2))
