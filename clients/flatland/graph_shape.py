"""How tree-like a client's graph is, and how heavy the tail of its degrees: facts for diagnostics.

Gromov's delta by the four-point condition: of four nodes the two largest of d(w,x) + d(y,z),
d(w,y) + d(x,z), d(w,z) + d(x,y) differ by at most 2 delta. Trees have delta 0, a cycle of n nodes n / 4.
Here quadruples are drawn, so that the largest value found is a lower bound; the mean over the quadruples
is an estimate without bias.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import scipy.sparse as sparse

QUADRUPLES = 20_000  # drawn per graph
TAIL = 0.1  # share of nodes, those of highest degree, that the tail is estimated from

Distances = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Hyperbolicity:
    """Of the drawn quadruples of one connected graph.

    Attributes:
        largest: delta, a lower bound of the graph's.
        mean: over quadruples.
        relative: 2 largest / diameter, in [0, 1].
    """

    largest: float
    mean: float
    relative: float


def hyperbolicity(
    graph: "sparse.csr_array", rng: np.random.Generator, quadruples: int = QUADRUPLES
) -> Hyperbolicity:
    """Gromov's delta of the largest component.

    Args:
        graph: [v, v] symmetric 0/1; all distances of the component are held, v^2 float64 values.
        rng: draws quadruples of nodes, with repetition.
        quadruples: how many.
    """
    distances = _distances(largest_component(graph))
    if len(distances) < 4:
        return Hyperbolicity(0.0, 0.0, 0.0)
    w, x, y, z = rng.integers(len(distances), size=(4, quadruples))
    sums = np.stack(
        [
            distances[w, x] + distances[y, z],
            distances[w, y] + distances[x, z],
            distances[w, z] + distances[x, y],
        ]
    )
    sums.sort(axis=0)
    deltas = (sums[2] - sums[1]) / 2
    largest = float(deltas.max())
    return Hyperbolicity(largest, float(deltas.mean()), 2 * largest / float(distances.max()))


def largest_component(graph: "sparse.csr_array") -> "sparse.csr_array":
    """The subgraph on the largest component; of equally large ones, that of the lowest node."""
    _, component = sparse.csgraph.connected_components(graph, directed=False)
    inside = np.flatnonzero(component == np.bincount(component).argmax())
    return sparse.csr_array(sparse.csr_matrix(graph)[inside][:, inside])


def degree_tail(graph: "sparse.csr_array") -> float:
    """Hill's estimate of the exponent a of P(degree > x) ~ x^-a, from the highest tenth; small: heavy.

    Hill, Annals of Statistics 1975. Infinite where the highest tenth have one degree; then 0 is told, as
    there is no tail to speak of.
    """
    degrees = np.sort(np.asarray(graph.sum(axis=1)).ravel())[::-1]
    count = max(2, int(len(degrees) * TAIL))
    if len(degrees) <= count or degrees[count] <= 0:
        return 0.0
    spread = float(np.log(degrees[:count] / degrees[count]).mean())
    return 1 / spread if spread > 0 else 0.0


def _distances(graph: "sparse.csr_array") -> Distances:
    found: Distances = sparse.csgraph.shortest_path(graph, method="D", unweighted=True, directed=False)
    return found
