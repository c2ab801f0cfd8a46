"""A client's K: where it starts, given the client's graph, and how it stays positive.

Forman-Ricci curvature of an edge (u, v) of an unweighted graph: 4 - deg(u) - deg(v), or with triangles
counted as faces ("augmented") 3 more for each triangle on it (Samal et al., "Comparative Analysis of Two
Discretizations of Ricci Curvature for Complex Networks", 2018). How FlatLand maps it to K is not public;
see the README for the map used here.
"""

import numpy as np
import scipy.sparse as sparse
from torch import Tensor
from torch.nn import functional

SMALLEST, LARGEST = 0.1, 10.0  # K at the start
FLOOR = 0.05  # K never falls below


def radius(raw: Tensor) -> Tensor:
    """K = softplus(raw) + 0.05."""
    return functional.softplus(raw) + FLOOR


def raw_of(k: float) -> float:
    """The parameter behind K > 0.05."""
    return float(np.log(np.expm1(k - FLOOR)))


def simple_graph(edge_index: Tensor, nodes: int) -> "sparse.csr_array":
    """[v, v] symmetric 0/1 matrix: edges both ways, each once, without loops."""
    sources, targets = edge_index.cpu().numpy()
    apart = sources != targets
    ends = (np.r_[sources[apart], targets[apart]], np.r_[targets[apart], sources[apart]])
    matrix = sparse.csr_array((np.ones(len(ends[0])), ends), shape=(nodes, nodes))
    matrix.sum_duplicates()
    matrix.data[:] = 1.0
    return matrix


def forman_ricci(graph: "sparse.csr_array", *, triangles: bool = False) -> float:
    """The mean Forman-Ricci curvature over the edges of a graph; 0 without edges.

    Args:
        graph: as `simple_graph` makes it.
        triangles: the augmented curvature.
    """
    if graph.nnz == 0:
        return 0.0
    degrees = np.asarray(graph.sum(axis=1)).ravel()
    sources, targets = graph.nonzero()
    values = 4.0 - degrees[sources] - degrees[targets]
    total = float(values.sum())
    if triangles:
        total += 3.0 * float((graph @ graph).multiply(graph).sum())
    return total / len(sources)


def starting_k(graph: "sparse.csr_array", *, triangles: bool = False) -> float:
    """K in [0.1, 10] at a client's first use: mean degree / max(-F, 0), F the mean Forman-Ricci curvature."""
    if graph.nnz == 0:
        return LARGEST
    bend = max(-forman_ricci(graph, triangles=triangles), 0.0) / (graph.nnz / graph.shape[0])
    return LARGEST if bend <= 1 / LARGEST else max(1 / bend, SMALLEST)
