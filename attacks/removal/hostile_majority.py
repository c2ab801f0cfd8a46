"""Federated fine-tuning by clients who want the mark gone and outnumber its owner, who has left.

McMahan et al., AISTATS 2017, Algorithm 1, over parts of the thieves' graph: in each round every client
trains the shared model on its part without the mark, and the updates are averaged by training nodes.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from attacks.removal.fine_tuning import fine_tune
from fedsim.contracts import Optimizer, Tensors
from fedsim.errors import ConfigError
from fedsim.params import Layout
from fedsim.watermark.subgraphs import Graph


@dataclass(frozen=True)
class Part:
    """One client's data: a graph, and the nodes [k] whose labels it trains on."""

    graph: Graph
    nodes: Tensor


def federated_fine_tune(
    model: nn.Module,
    tensors: Tensors,
    parts: Sequence[Part],
    *,
    optimizer: Optimizer,
    rounds: int,
    epochs: int,
    rng: torch.Generator,
) -> dict[str, Tensor]:
    """The shared model after some rounds.

    Args:
        model: the template.
        tensors: of the marked model.
        parts: one per client.
        optimizer: of every client, fresh in every round.
        rounds: of federated averaging.
        epochs: of a client in a round.
        rng: draws dropout.

    Raises:
        ConfigError: there are no clients, or one has no nodes to train on.
    """
    if not parts or not all(len(part.nodes) for part in parts):
        raise ConfigError("parts must be clients with training nodes.")
    layout = Layout.of(tensors)
    vector = layout.flatten(tensors)
    total = sum(len(part.nodes) for part in parts)
    for _ in range(rounds):
        start = layout.unflatten(vector, {})
        mean = torch.zeros(len(vector), dtype=torch.float64)
        for part in parts:
            trained = fine_tune(
                model, start, part.graph, part.nodes, optimizer=optimizer, epochs=epochs, rng=rng
            )
            mean += layout.flatten(trained).double() * (len(part.nodes) / total)
        vector = mean.to(vector.dtype)
    return layout.unflatten(vector, {})


def parted(graph: Graph, nodes: Tensor, clients: int, rng: torch.Generator) -> list[Part]:
    """A graph cut into random parts, edges between them dropped.

    Args:
        graph: the whole.
        nodes: [k] int64, those whose labels are known.
        clients: how many parts.
        rng: deals the nodes.
    """
    owner = torch.randint(clients, (len(graph.x),), generator=rng)
    known = torch.zeros(len(graph.x), dtype=torch.bool)
    known[nodes] = True
    parts = []
    for client in range(clients):
        own = (owner == client).nonzero()[:, 0]
        place = torch.full((len(graph.x),), -1).index_put((own,), torch.arange(len(own)))
        edges = place[graph.edge_index]
        edges = edges[:, (edges >= 0).all(dim=0)]
        part = Graph(graph.x[own], edges, graph.y[own], graph.classes)
        parts.append(Part(part, known[own].nonzero()[:, 0]))
    return parts
