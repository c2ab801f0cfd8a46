import itertools

import networkx
import numpy as np
import pytest
import scipy.sparse as sparse

from clients.flatland.graph_shape import degree_tail, hyperbolicity, largest_component


def matrix(graph):
    return sparse.csr_array(networkx.to_scipy_sparse_array(graph, dtype=float, format="csr"))


def by_definition(graph):
    """(largest delta, mean over all ordered quadruples with repetition)."""
    far = dict(networkx.all_pairs_shortest_path_length(graph))
    deltas = []
    for w, x, y, z in itertools.product(graph, repeat=4):
        sums = sorted((far[w][x] + far[y][z], far[w][y] + far[x][z], far[w][z] + far[x][y]))
        deltas.append((sums[2] - sums[1]) / 2)
    return max(deltas), float(np.mean(deltas))


@pytest.mark.parametrize(
    "graph",
    [
        networkx.cycle_graph(9),
        networkx.grid_2d_graph(3, 4),
        networkx.connected_watts_strogatz_graph(12, 4, 0.4, seed=2),
        networkx.balanced_tree(2, 2),
        networkx.complete_graph(6),
    ],
)
def test_delta_of_drawn_quadruples_is_that_of_all(graph):
    largest, mean = by_definition(networkx.convert_node_labels_to_integers(graph))
    found = hyperbolicity(matrix(graph), np.random.default_rng(0), quadruples=200_000)
    assert found.largest == largest
    assert found.mean == pytest.approx(mean, abs=0.01)
    assert found.relative == 2 * largest / networkx.diameter(graph)


def test_trees_are_hyperbolic_and_cycles_are_not():
    rng = np.random.default_rng(0)
    assert hyperbolicity(matrix(networkx.random_labeled_tree(300, seed=1)), rng).largest == 0.0
    assert hyperbolicity(matrix(networkx.cycle_graph(40)), rng).largest == 10.0


def test_the_largest_component_counts():
    both = networkx.disjoint_union(networkx.cycle_graph(4), networkx.path_graph(9))
    assert largest_component(matrix(both)).shape == (9, 9)
    assert hyperbolicity(matrix(both), np.random.default_rng(0)).largest == 0.0
    alone = sparse.csr_array((3, 3))
    assert hyperbolicity(alone, np.random.default_rng(0)).relative == 0.0


def test_the_tail_of_a_power_law_and_of_a_regular_graph():
    heavy = networkx.barabasi_albert_graph(20_000, 2, seed=0)  # P(degree > x) ~ x^-2
    assert degree_tail(matrix(heavy)) == pytest.approx(2.0, abs=0.25)
    assert degree_tail(matrix(networkx.cycle_graph(50))) == 0.0
    assert degree_tail(sparse.csr_array((1, 1))) == 0.0
