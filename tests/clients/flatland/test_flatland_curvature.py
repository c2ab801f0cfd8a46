import math

import networkx
import numpy as np
import pytest
import torch

from clients.flatland.curvature import forman_ricci, radius, raw_of, simple_graph, starting_k


def edges_of(graph):
    """Directed edges in one direction only, with a loop and a double edge thrown in."""
    pairs = [*graph.edges, next(iter(graph.edges)), (0, 0)]
    return torch.tensor(pairs).T


def by_definition(graph, triangles):
    """Edge by edge, with networkx."""
    values = []
    for u, v in graph.edges:
        common = len(set(graph[u]) & set(graph[v])) if triangles else 0
        values.append(4 - graph.degree(u) - graph.degree(v) + 3 * common)
    return sum(values) / len(values)


GRAPHS = {
    "tree": networkx.balanced_tree(2, 5),
    "cycle": networkx.cycle_graph(9),
    "clique": networkx.complete_graph(6),
    "star": networkx.star_graph(40),
    "random": networkx.gnp_random_graph(40, 0.2, seed=1),
}


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("triangles", [False, True])
def test_forman_ricci_is_the_mean_over_edges(name, triangles):
    graph = GRAPHS[name]
    matrix = simple_graph(edges_of(graph), len(graph))
    assert forman_ricci(matrix, triangles=triangles) == pytest.approx(by_definition(graph, triangles))


def test_known_curvatures():
    def of(name, **options):
        return forman_ricci(simple_graph(edges_of(GRAPHS[name]), len(GRAPHS[name])), **options)

    assert of("cycle") == 0.0
    assert of("star") == 4 - 40 - 1
    assert of("clique") == 4 - 5 - 5
    assert of("clique", triangles=True) == 4 - 5 - 5 + 3 * 4


@pytest.mark.parametrize("name", GRAPHS)
def test_k_starts_at_mean_degree_over_curvature_within_its_bounds(name):
    graph = GRAPHS[name]
    degree = np.mean([d for _, d in graph.degree])
    bend = max(-by_definition(graph, False), 0) / degree
    expected = 10.0 if bend == 0 else min(max(1 / bend, 0.1), 10.0)
    assert starting_k(simple_graph(edges_of(graph), len(graph))) == pytest.approx(expected)


def test_graphs_without_curvature_are_nearly_flat():
    assert starting_k(simple_graph(torch.zeros(2, 0, dtype=torch.int64), 5)) == 10.0
    assert starting_k(simple_graph(torch.tensor([[0], [0]]), 5)) == 10.0  # a loop is no edge
    assert starting_k(simple_graph(edges_of(GRAPHS["clique"]), 6), triangles=True) == 10.0
    assert starting_k(simple_graph(edges_of(GRAPHS["star"]), 41)) == pytest.approx(0.1)


@pytest.mark.parametrize("k", [0.1, 0.7, 1.0, 10.0])
def test_the_parameter_behind_k(k):
    raw = torch.tensor(raw_of(k), dtype=torch.float64)
    assert float(radius(raw)) == pytest.approx(k, rel=1e-12)
    assert float(radius(raw)) == pytest.approx(math.log1p(math.exp(raw)) + 0.05)
    assert float(radius(torch.tensor(-1e3))) == pytest.approx(0.05)
