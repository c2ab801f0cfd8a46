"""Distillation and extraction: a new model learns the answers of the stolen one.

Hinton et al., "Distilling the Knowledge in a Neural Network", NIPS workshop 2014 (soft answers at temperature
1), with the thief's graph as questions; and Tramer et al., "Stealing Machine Learning Models via Prediction
APIs", USENIX Security 2016, where the thief sees nothing but answers. The two differ only in who answers.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedsim.contracts import Optimizer, Tensors
from fedsim.training.functional import model_tensors
from fedsim.watermark.descent import descend
from fedsim.watermark.forward import GraphModel
from fedsim.watermark.subgraphs import Graph, Subgraphs
from fedsim.watermark.suspect import Query


def distil(
    model: nn.Module,
    tensors: Tensors,
    graph: Graph,
    nodes: Tensor,
    *,
    optimizer: Optimizer,
    epochs: int,
    rng: torch.Generator,
    student: nn.Module | None = None,
) -> dict[str, Tensor]:
    """A student trained on the stolen model's probabilities in the whole graph.

    Args:
        model: the stolen model's template.
        tensors: its tensors.
        graph: the thief's data; labels are not used.
        nodes: [k] int64, whose answers are learned.
        optimizer: of the student.
        epochs: steps over all nodes.
        rng: draws dropout.
        student: its template, whose tensors are the start; None: the stolen model's.
    """
    with torch.no_grad():
        answers = GraphModel(model, graph.x, graph.edge_index).probabilities(tensors)
    learner = student or model
    return _learned(learner, [(graph.x, graph.edge_index, answers, nodes)], optimizer, epochs, rng)


def extract(
    query: Query,
    student: nn.Module,
    graph: Graph,
    nodes: Tensor,
    *,
    optimizer: Optimizer,
    epochs: int,
    rng: torch.Generator,
    alone: Subgraphs | None = None,
    hard: bool = False,
) -> dict[str, Tensor]:
    """A student trained on what a black box answers.

    Args:
        query: the black box.
        student: its template, whose tensors are the start.
        graph: the thief's data, asked about as a whole; labels are not used.
        nodes: [k] int64, whose answers are learned.
        optimizer: of the student.
        epochs: steps over all answers.
        rng: draws dropout.
        alone: subgraphs that are asked about too, each alone, such as random sets of the thief's nodes.
        hard: learn the most probable class instead of the probabilities.
    """
    asked = [(graph.x, graph.edge_index, query(graph.x, graph.edge_index), nodes)]
    if alone is not None:
        pairs = list(zip(alone.x, alone.edges, strict=True))
        x, edges = alone.together()
        told = torch.cat([torch.as_tensor(query(one, own)) for one, own in pairs])
        asked.append((x, edges, told, torch.arange(len(x))))
    if hard:
        asked = [
            (x, edges, functional.one_hot(told.argmax(dim=1), told.shape[1]), kept)
            for x, edges, told, kept in asked
        ]
    return _learned(student, asked, optimizer, epochs, rng)


Lesson = tuple[Tensor, Tensor, Tensor, Tensor]  # x, edge_index, answers, nodes that count


def _learned(
    student: nn.Module, lessons: list[Lesson], optimizer: Optimizer, epochs: int, rng: torch.Generator
) -> dict[str, Tensor]:
    start = model_tensors(student)
    kind = next(iter(start.values())).dtype
    heard: list[Callable[[Tensors], Tensor]] = [_heard(student, lesson, kind, rng) for lesson in lessons]

    def losses(tensors: Tensors, step: int) -> Tensor:
        return torch.stack([loss(tensors) for loss in heard]).sum()

    return descend(start, losses, optimizer, epochs)


def _heard(
    student: nn.Module, lesson: Lesson, kind: torch.dtype, rng: torch.Generator
) -> Callable[[Tensors], Tensor]:
    """The cross-entropy with the answers of one lesson."""
    x, edges, answers, nodes = lesson
    model, targets = GraphModel(student, x, edges), answers[nodes].to(kind)

    def loss(tensors: Tensors) -> Tensor:
        return functional.cross_entropy(model.logits(tensors, model.draw(rng))[nodes], targets)

    return loss
