"""The Lorentz graph network of FlatLand, on nodes and on graphs.

A convolution is a Lorentz map followed by the Lorentz centroid over neighbours, weighted by the
normalised adjacency with self-loops; a graph's state is the centroid of its nodes. Class points c_k decode:
logit_k = b_k - d^2(x, c_k), the squared Lorentz distance. See the README for what is the paper's and what
was decided here.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from clients.flatland.curvature import radius, raw_of
from clients.flatland.geometry import (
    centroid,
    exp_factor,
    lift,
    log_origin,
    residual,
    squared_distances,
    within,
)
from clients.flatland.layers import Map, space_coordinates
from clients.flatland.stack import DecoupledStack, Watch
from clients.models.checks import at_least, is_rate, require_task
from clients.models.stacked_edges import along, normalised, pooling
from clients.models.stacked_layers import inputs, linear
from fedsim.contracts import Batch, DataSpec, StackedBatch, Tensors

TANGENT_LIMIT = 3.0  # length of a feature vector in the tangent space; longer ones are shortened
SPACE_LIMIT = 5.0  # length of a state's space part; without a limit float32 leaves the manifold

Curvature = Literal["learned", "fixed", "unit"]
Decoder = Literal["distance", "log"]
Activation = Literal["relu", "none"]


@dataclass(frozen=True, kw_only=True)
class Lorentz:
    """A stack of Lorentz convolutions.

    Attributes:
        hidden: d, space coordinates of every state.
        layers: convolutions; unset: 2 on nodes, 3 on graphs.
        dropout: share of space coordinates dropped in training.
        activation: of space coordinates, after every convolution but the last.
        curvature: K is trained, or stays at its start, or is 1 everywhere.
        per_layer: a K for each convolution.
        decoder: class points, or the logarithmic map at the origin and a linear layer.
        map: `decoupled` is FlatLand's, `chen` that of Chen et al. (2022).
    """

    hidden: int = 64
    layers: int | None = None
    dropout: float = 0.5
    activation: Activation = "relu"
    curvature: Curvature = "learned"
    per_layer: bool = False
    decoder: Decoder = "distance"
    map: Map = "decoupled"

    def __post_init__(self) -> None:
        at_least("hidden", self.hidden, 1)
        at_least("layers", 1 if self.layers is None else self.layers, 1)
        is_rate("dropout", self.dropout)

    def build(self, spec: DataSpec) -> nn.Module:
        """The module for nodes or graphs.

        Raises:
            ConfigError: the data are rows.
        """
        require_task("lorentz", spec, "nodes", "graphs")
        return LorentzModel(self, spec)


class Entry(NamedTuple):
    """Features on their way into the first convolution, whose space part is never written out.

    Attributes:
        time: [k, v, 1].
        factor: [k, v, 1], what a node's features are multiplied by to be space coordinates.
    """

    time: Tensor
    factor: Tensor


class LorentzModel(DecoupledStack):
    """States are points [k, v, 1 + d]."""

    def __init__(self, table: Lorentz, spec: DataSpec) -> None:
        super().__init__(
            spec,
            hidden=table.hidden,
            layers=table.layers,
            dropout=table.dropout,
            kind=table.map,
            linear_head=table.decoder == "log",
        )
        self.table = table
        start = torch.full((len(self.convolutions) if table.per_layer else 1,), raw_of(1.0))
        if table.curvature == "learned":
            self.curvature = nn.Parameter(start)
        elif table.curvature == "fixed":
            self.register_buffer("curvature", start)

    def k(self, tensors: Tensors, index: int) -> Tensor:
        """K of a convolution's outputs, [k, 1, 1]; of the features for index 0 too."""
        if self.table.curvature == "unit":
            return torch.ones_like(tensors["convolutions.0.bias"][:, :1, None])
        values = radius(tensors["curvature"])
        return values[:, min(index, values.shape[1] - 1)].view(-1, 1, 1)

    def enter(self, tensors: Tensors, batch: StackedBatch) -> Entry:
        """The exponential map of the features at the origin, with the present K."""
        norm: Tensor = batch.form("norms of features", feature_norms)
        k = self.k(tensors, 0)
        short = norm.clamp_max(TANGENT_LIMIT)
        space = (short * exp_factor(short, k)).clamp_max(SPACE_LIMIT)
        factor = space / torch.where(norm == 0, 1.0, norm)
        return Entry((space.square() + k).sqrt(), factor)

    def convolve(
        self,
        tensors: Tensors,
        index: int,
        states: Tensor | Entry,
        batch: StackedBatch,
        watch: Watch | None,
    ) -> Tensor:
        """The map, then the centroid over neighbours; points of the convolution's own K."""
        name, k = f"convolutions.{index}", self.k(tensors, index)
        if isinstance(states, Entry):
            time = states.time
            spatial = linear(batch, inputs(batch), tensors[f"{name}.space"]) * states.factor
        else:
            time = states[..., :1]
            spatial = linear(batch, states[..., 1:], tensors[f"{name}.space"])
        temporal = time * tensors[f"{name}.time"].unsqueeze(1)
        rows = temporal + spatial + tensors[f"{name}.bias"].unsqueeze(1)
        space = space_coordinates(rows, self.table.map, k, tensors.get(f"{name}.time_scale"))
        points = lift(within(space, SPACE_LIMIT), k)
        gathered = centroid(along(normalised(batch), points), k)
        if watch is not None:
            watch[f"time_norm_{index}"] = temporal.norm(dim=-1).mean(dim=1)
            watch[f"space_norm_{index}"] = spatial.norm(dim=-1).mean(dim=1)
            watch[f"k_{index}"] = k.flatten()
            watch[f"residual_{index}"] = residual(gathered, k).amax(dim=(1, 2))  # before it is lifted again
        return settled(gathered, k)

    def activate(self, tensors: Tensors, index: int, states: Tensor, mask: Tensor | None) -> Tensor:
        """Of the space part; time is recomputed."""
        space = states[..., 1:]
        if self.table.activation == "relu":
            space = space.relu()
        return lift(space if mask is None else space * mask, self.k(tensors, index))

    def read_out(self, tensors: Tensors, states: Tensor, batch: StackedBatch) -> Tensor:
        """The centroid of each graph's nodes, [k, g, 1 + d]; the origin for a graph without nodes."""
        k = self.k(tensors, len(self.convolutions) - 1)
        return settled(centroid(along(pooling(batch, "sum"), states), k), k)

    def decode(self, tensors: Tensors, states: Tensor) -> Tensor:
        """By class points, or by a linear layer in the tangent space at the origin."""
        k = self.k(tensors, len(self.convolutions) - 1)
        bias = tensors["head.bias"].unsqueeze(1)
        if self.table.decoder == "log":
            return log_origin(states, k) @ tensors["head.weight"].transpose(1, 2) + bias
        return bias - squared_distances(states, lift(tensors["head.points"], k), k)


def settled(points: Tensor, k: Tensor) -> Tensor:
    """Points with their time recomputed, close enough to the origin for float32."""
    return lift(within(points[..., 1:], SPACE_LIMIT), k)


def feature_norms(batch: Batch) -> Tensor:
    """[k, v, 1], lengths of the feature vectors of k clients."""
    x, clients = batch.x, batch.y.shape[0]
    if x.layout != torch.sparse_csr:
        lengths: Tensor = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        return lengths
    starts = x.crow_indices()
    rows = torch.arange(x.shape[0], device=x.device).repeat_interleave(starts.diff())
    squares = x.values().new_zeros(x.shape[0]).index_add_(0, rows, x.values().square())
    return squares.sqrt().view(clients, -1, 1)
