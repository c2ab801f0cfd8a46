"""The workloads' models as anybody would write them in torch, their tensors in the order of the plan."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional


def network(known: dict[str, Any]) -> nn.Module:
    """The module of a plan, untrained; `known` is the plan's JSON."""
    shapes = [tuple(shape) for _, shape in known["tensors"]]
    if known["network"] == "mlp":
        return perceptron([shape for shape in shapes if len(shape) == 2])
    return Convolutional(shapes) if known["network"] == "cnn" else graph_network(shapes)


def perceptron(shapes: list[tuple[int, ...]]) -> nn.Module:
    layers: list[nn.Module] = []
    for out, into in shapes:
        layers += [nn.Linear(into, out), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


class Convolutional(nn.Module):
    def __init__(self, shapes: list[tuple[int, ...]]) -> None:
        super().__init__()
        first, second, dense, head = (shape for shape in shapes if len(shape) > 1)
        self.conv1 = nn.Conv2d(first[1], first[0], first[2], padding=first[2] // 2)
        self.conv2 = nn.Conv2d(second[1], second[0], second[2], padding=second[2] // 2)
        self.dense = nn.Linear(dense[1], dense[0])
        self.head = nn.Linear(head[1], head[0])

    def forward(self, x: Tensor) -> Tensor:
        x = functional.max_pool2d(functional.relu(self.conv1(x)), 2)
        x = functional.max_pool2d(functional.relu(self.conv2(x)), 2)
        logits: Tensor = self.head(functional.relu(self.dense(x.flatten(1))))
        return logits


def graph_network(shapes: list[tuple[int, ...]]) -> nn.Module:
    from torch_geometric.nn import GCNConv

    class Graph(nn.Module):
        def __init__(self, weights: list[tuple[int, ...]]) -> None:
            super().__init__()
            self.first = GCNConv(weights[0][1], weights[0][0])
            self.second = GCNConv(weights[1][1], weights[1][0])

        def forward(self, x: Tensor, edges: Tensor) -> Tensor:
            logits: Tensor = self.second(functional.relu(self.first(x, edges)), edges)
            return logits

    return Graph([shape for shape in shapes if len(shape) == 2])


def write(model: nn.Module, vector: Tensor) -> None:
    """Give the model's parameters the values of a vector."""
    start = 0
    with torch.no_grad():
        for parameter in model.parameters():
            size = parameter.numel()
            parameter.copy_(vector[start : start + size].view_as(parameter))
            start += size


def read(model: nn.Module) -> Tensor:
    """[d], the parameters end to end."""
    return torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()])
