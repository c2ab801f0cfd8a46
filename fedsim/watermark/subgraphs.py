"""Sets of nodes and the subgraphs that they induce, each of which a model is shown alone.

v nodes, e directed edges, f features; t sets of n nodes.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedsim import rng
from fedsim.data.split import stratified
from fedsim.errors import ConfigError
from fedsim.params import digest

SHARE = 0.005  # s of the paper: n = s times the training nodes
SPLIT = (0.6, 0.2, 0.2)  # train, validation, test, as in the paper


@dataclass(frozen=True)
class Graph:
    """A graph whose nodes are classified.

    Attributes:
        x: [v, f] float32.
        edge_index: [2, e] int64.
        y: [v] int64.
        classes: c.
    """

    x: Tensor
    edge_index: Tensor
    y: Tensor
    classes: int


@dataclass(frozen=True)
class Subgraphs:
    """Induced subgraphs of equally large sets.

    Attributes:
        x: [t, n, f].
        edges: t tensors [2, e_i] int64, which count a set's nodes from 0.
    """

    x: Tensor
    edges: tuple[Tensor, ...]

    def together(self) -> tuple[Tensor, Tensor]:
        """(x [t n, f], edge_index): one graph of unconnected blocks, in which each set is still alone."""
        n = self.x.shape[1]
        shifted = [edges + n * place for place, edges in enumerate(self.edges)]
        return self.x.flatten(0, 1), torch.cat(shifted, dim=1)

    def sha256(self) -> str:
        """Of all features and edges, in order."""
        named = {f"edges.{place:06d}": edges for place, edges in enumerate(self.edges)}
        return digest({"x": self.x.float()} | named)


@dataclass(frozen=True)
class Split:
    """Train, validation and test nodes, [.] int64 each."""

    train: Tensor
    val: Tensor
    test: Tensor


def split_nodes(y: Tensor, seed: int) -> Split:
    """A stratified 60 / 20 / 20 split of all nodes, drawn by `seed`; what rounding leaves is tested on."""
    train, val = (int(share * len(y)) for share in SPLIT[:2])
    sizes = np.array([train, val, len(y) - train - val])
    parts = stratified(y.numpy(), sizes, rng.numpy_stream(seed, "watermark.split"))
    return Split(*(torch.from_numpy(np.sort(part)) for part in parts))


def set_size(training_nodes: int, share: float = SHARE, at_least: int = 2) -> int:
    """n: `share` of the training nodes, rounded down, but no fewer than `at_least`."""
    return max(at_least, int(share * training_nodes))


def draw_sets(nodes: Tensor, sets: int, size: int, generator: torch.Generator) -> Tensor:
    """Disjoint random sets.

    Args:
        nodes: [k] int64, to draw from.
        sets: t.
        size: n.
        generator: draws them.

    Returns:
        [t, n] int64, each row ascending.

    Raises:
        ConfigError: fewer than t n nodes.
    """
    if len(nodes) < sets * size:
        raise ConfigError(f"{sets} sets of {size} nodes need {sets * size} nodes, found {len(nodes)}.")
    chosen = nodes[torch.randperm(len(nodes), generator=generator)[: sets * size]]
    return chosen.view(sets, size).sort(dim=1).values


def without(nodes: Tensor, taken: Tensor) -> Tensor:
    """The nodes that are not among those taken, in their order."""
    return nodes[~torch.isin(nodes, taken.flatten())]


def induced(x: Tensor, edge_index: Tensor, sets: Tensor) -> Subgraphs:
    """The subgraphs of disjoint sets [t, n], with their nodes in the order given."""
    count, size = sets.shape
    owner = torch.full((len(x),), -1)
    place = torch.zeros(len(x), dtype=torch.int64)
    owner[sets.flatten()] = torch.arange(count).repeat_interleave(size)
    place[sets.flatten()] = torch.arange(size).repeat(count)
    ends = owner[edge_index]
    inside = (ends[0] == ends[1]) & (ends[0] >= 0)
    edges, owners = place[edge_index[:, inside]], ends[0, inside]
    return Subgraphs(x[sets], tuple(edges[:, owners == one] for one in range(count)))


def as_sets(rows: Sequence[Sequence[int]]) -> Tensor:
    """[t, n] int64."""
    return torch.tensor([list(row) for row in rows], dtype=torch.int64)
