"""Fine-tuning: training goes on without the mark, on all nodes whose labels the thief has.

Adi et al., "Turning Your Weakness Into a Strength", USENIX Security 2018, section 5.3 (fine-tune all layers).
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedsim.contracts import Optimizer, Tensors
from fedsim.watermark.descent import descend
from fedsim.watermark.forward import GraphModel
from fedsim.watermark.subgraphs import Graph


def fine_tune(
    model: nn.Module,
    tensors: Tensors,
    graph: Graph,
    nodes: Tensor,
    *,
    optimizer: Optimizer,
    epochs: int,
    rng: torch.Generator,
) -> dict[str, Tensor]:
    """The model after some epochs of plain training.

    Args:
        model: the template.
        tensors: of the stolen model.
        graph: the thief's data.
        nodes: [k] int64, whose labels the thief has.
        optimizer: the paper's strengths are 0.1 and 1 times the owner's learning rate.
        epochs: steps over all nodes.
        rng: draws dropout.
    """
    whole = GraphModel(model, graph.x, graph.edge_index)
    labels = graph.y[nodes]

    def losses(current: Tensors, step: int) -> Tensor:
        logits = whole.logits(current, whole.draw(rng))
        return functional.cross_entropy(logits[nodes], labels)

    return descend(tensors, losses, optimizer, epochs)
