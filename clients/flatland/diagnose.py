"""FlatLand's diagnostics: K, norms and residuals of a client's model, and the shape of its graph."""

import numpy as np
import torch
from torch import Tensor, nn

from clients.flatland.curvature import forman_ricci, simple_graph
from clients.flatland.graph_shape import degree_tail, hyperbolicity
from clients.flatland.stack import DecoupledStack, Watch
from fedsim.contracts import Batch, ClientInfo, Tensors
from fedsim.training.functional import FunctionalModel

GRAPH = "graph/"
"""Prefix of the facts about a client's graph, which are kept among its private tensors."""


def graph_facts(batch: Batch, rng: torch.Generator) -> dict[str, Tensor]:
    """Facts about a client's graph (of graphs: about all of them side by side), [] float64 each."""
    if batch.edge_index is None:
        return {}
    graph = simple_graph(batch.edge_index, len(batch.x))
    seed = int(torch.randint(2**62, (), generator=rng))
    delta = hyperbolicity(graph, np.random.default_rng(seed))
    facts = {
        "delta": delta.largest,
        "delta_mean": delta.mean,
        "delta_relative": delta.relative,
        "degree_tail": degree_tail(graph),
        "degree_mean": graph.nnz / graph.shape[0],
        "forman_ricci": forman_ricci(graph),
    }
    return {GRAPH + name: torch.tensor(value, dtype=torch.float64) for name, value in facts.items()}


def told(client: ClientInfo, model: nn.Module, tensors: Tensors) -> dict[str, float]:
    """One number per name: of the model on the client's training graph in evaluation, and of the graph."""
    facts = {n.replace("/", "_"): float(t) for n, t in tensors.items() if n.startswith(GRAPH)}
    if not isinstance(model, DecoupledStack):
        return facts
    watch: Watch = {}
    with torch.no_grad():
        named = {f"model.{name}": tensor for name, tensor in tensors.items()}
        FunctionalModel(_Watched(model, watch))(named, client.data.train.batch())
    return facts | {name: float(value) for name, value in watch.items()}


class _Watched(nn.Module):
    """Calls a model so that it leaves its diagnostics in `watch`."""

    def __init__(self, model: DecoupledStack, watch: Watch) -> None:
        super().__init__()
        self.model, self.watch = model, watch

    def forward(self, batch: Batch, noise: Tensors | None = None) -> Tensor:
        """The model's logits."""
        return self.model.watched(batch, noise, self.watch)
