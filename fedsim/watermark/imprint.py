"""Pressing a key into a finished model, such as a federation's new model on its owner's server.

No labels are needed: what the model answered before, on the owner's graph, is what it shall go on answering,
and the key is pressed in beside it. Not in Downer et al., who train from the start.
"""

from collections.abc import Sequence

import torch
from torch import nn
from torch.nn import functional

from fedsim.contracts import Optimizer, Tensors
from fedsim.watermark.descent import descend
from fedsim.watermark.embedding import Mark
from fedsim.watermark.forward import GraphModel
from fedsim.watermark.loss import pcgrad
from fedsim.watermark.subgraphs import Graph


def imprint(
    model: nn.Module,
    tensors: Tensors,
    marks: Sequence[Mark],
    graph: Graph,
    *,
    optimizer: Optimizer,
    steps: int,
    strength: float,
    margin: float,
) -> dict[str, torch.Tensor]:
    """The model with the keys in it.

    Args:
        model: the template.
        tensors: of the model, in the type of the graph's features.
        marks: keys made ready for this template.
        graph: the owner's; its labels are not used.
        optimizer: fresh.
        steps: over the whole graph.
        strength: r, the weight of the marks' losses.
        margin: epsilon.
    """
    whole = GraphModel(model, graph.x, graph.edge_index)
    with torch.no_grad():
        before = whole.logits(tensors).softmax(dim=-1)

    def losses(current: Tensors, step: int) -> torch.Tensor:
        kept = functional.cross_entropy(whole.logits(current), before)
        own = [strength * mark.loss(current, margin).to(kept.dtype) for mark in marks]
        return torch.stack([kept, *own])

    return descend(tensors, losses, optimizer, steps, pcgrad)
