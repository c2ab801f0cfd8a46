"""Lorentz linear maps of k clients with private time-like and shared space-like weights.

The map of FlatLand, as reviews of the paper tell it: W = [m, M], where m [d'] multiplies the time coordinate
and M [d', d] the space coordinates,

    x_s' = m x_t + M x_s + b        x_t' = sqrt(|x_s'|^2 + K)

so that the result is on the hyperboloid for any mixture of private m and averaged M. m starts at zero.

The alternative is the layer of Chen et al., "Fully Hyperbolic Neural Networks", ACL 2022, section 3: a
further row of W gives t0, time is sigmoid(t0) exp(s) + 1.1 sqrt(K) (there K = 1), and the space part is
scaled to fit it. There s starts at log 10; here at log 4, so that states start inside the limit on their
norm.
"""

import math
from typing import Literal

import torch
from torch import Tensor, nn

Map = Literal["decoupled", "chen"]


class Weights(nn.Module):
    """The weights of one map; the arithmetic is `space_coordinates`.

    Args:
        features: d, space coordinates in.
        units: d', space coordinates out.
        kind: which map.
    """

    def __init__(self, features: int, units: int, kind: Map) -> None:
        super().__init__()
        rows = units + (kind == "chen")
        self.time = nn.Parameter(torch.zeros(rows))
        self.space = nn.Parameter(torch.empty(rows, features))
        self.bias = nn.Parameter(torch.zeros(rows))
        nn.init.xavier_uniform_(self.space)
        if kind == "chen":
            self.time_scale = nn.Parameter(torch.tensor([math.log(4.0)]))


def space_coordinates(rows: Tensor, kind: Map, k: Tensor, scale: Tensor | None) -> Tensor:
    """x_s' from m x_t + M x_s + b.

    Args:
        rows: [k, v, d'], or [k, v, 1 + d'] with t0 first.
        kind: which map.
        k: K, [k, 1, 1].
        scale: s, [k, 1], where the map has it.
    """
    if kind == "decoupled" or scale is None:
        return rows
    time = rows[..., :1].sigmoid() * scale.unsqueeze(2).exp() + 1.1 * k.sqrt()
    space = rows[..., 1:]
    square = space.square().sum(dim=-1, keepdim=True).clamp_min(1e-8)
    return space * ((time.square() - k) / square).sqrt()
