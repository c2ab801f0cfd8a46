"""What the server's own key says of every model that it made, for the experiment's table."""

import json
import math
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from torch import nn

from fedsim.contracts import DataSpec, ModelBuilder, Server, Vector
from fedsim.params import Layout
from fedsim.training.template import SeededModel
from fedsim.watermark.key import Key, read_key
from fedsim.watermark.sources import read_graph
from fedsim.watermark.stored_model import tensors_suspect
from fedsim.watermark.subgraphs import Graph
from fedsim.watermark.verification import verify


@dataclass(frozen=True, kw_only=True)
class Notes:
    """Leaves the model alone and appends {round, z, log10_p} to a file; comes after `watermark`.

    Attributes:
        key: file of the key.
        data: the graph that it was made for.
        model: as in the table [model].
        path: of the file.
        every: rounds between two notes.
    """

    key: str
    data: str
    model: ModelBuilder
    path: str
    every: int = 5

    def refine(self, model: Vector, round: int, layout: Layout, server: Server) -> Vector:
        """[d] -> [d], the same."""
        if round % self.every == 0:
            key, graph, template = _ready(self)
            tensors = layout.unflatten(model.to(layout.dtype), {})
            match = verify(key, graph, tensors_suspect("model", template, tensors), null_sets=0).match
            with Path(self.path).open("a", encoding="utf-8") as file:
                line = {"round": round, "z": match.z, "log10_p": math.log10(match.p)}
                file.write(json.dumps(line) + "\n")
        return model


@lru_cache(maxsize=4)
def _ready(notes: Notes) -> tuple[Key, Graph, nn.Module]:
    key, graph = read_key(Path(notes.key)), read_graph(notes.data)
    spec = DataSpec("nodes", (graph.x.shape[1],), graph.classes)
    return key, graph, SeededModel(notes.model, 0).build(spec)
