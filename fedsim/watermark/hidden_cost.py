"""What a mark costs where test accuracy does not look: nodes without neighbours, and those with few.

A mark is pressed into the answers on sets that are fed alone, so the model learns to answer for the key
wherever there are no neighbours. `Embedding.cure` teaches it the task there.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedsim import rng
from fedsim.contracts import Tensors
from fedsim.watermark.embedding import accuracy
from fedsim.watermark.forward import GraphModel
from fedsim.watermark.subgraphs import Graph, draw_sets, induced

FEW = 3  # neighbours


@dataclass(frozen=True)
class Cost:
    """Accuracies on test nodes.

    Attributes:
        whole: all of them, in the whole graph.
        low_degree: those with at most FEW neighbours, in the whole graph; None: there are none.
        sets_alone: random sets of them, each fed alone.
        nodes_alone: each node fed alone.
    """

    whole: float
    low_degree: float | None
    sets_alone: float
    nodes_alone: float


def hidden_cost(
    model: nn.Module, tensors: Tensors, graph: Graph, test: Tensor, size: int, seed: int = 0
) -> Cost:
    """The accuracies of one model.

    Args:
        model: the template.
        tensors: of the model.
        graph: the data.
        test: [k] int64, the test nodes.
        size: n of the sets that are fed alone; as many disjoint ones as there are nodes for.
        seed: draws them.
    """
    whole = GraphModel(model, graph.x, graph.edge_index)
    degree = torch.bincount(graph.edge_index[1], minlength=len(graph.x))
    few = test[degree[test] <= FEW]
    drawn = draw_sets(test, len(test) // size, size, rng.stream(seed, "watermark.cost"))
    sets = induced(graph.x, graph.edge_index, drawn)
    nothing = torch.zeros(2, 0, dtype=torch.int64)
    everybody = torch.arange(drawn.numel())
    return Cost(
        whole=accuracy(whole, tensors, graph.y, test),
        low_degree=accuracy(whole, tensors, graph.y, few) if len(few) else None,
        sets_alone=accuracy(
            GraphModel(model, *sets.together()), tensors, graph.y[drawn.flatten()], everybody
        ),
        nodes_alone=accuracy(
            GraphModel(model, graph.x[test], nothing), tensors, graph.y[test], torch.arange(len(test))
        ),
    )
