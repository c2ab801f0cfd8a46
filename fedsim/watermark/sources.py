"""The graph that a command of `fedsim watermark` works on."""

from pathlib import Path

import torch

from fedsim.data.pool import NodePool
from fedsim.errors import ConfigError
from fedsim.plugins import build
from fedsim.run.atomic_files import save_tensors
from fedsim.watermark.stored_model import read_tensors
from fedsim.watermark.subgraphs import Graph


def read_graph(name: str, mirror: str | None = None) -> Graph:
    """A data set by the name that `[data]` would give it, or a safetensors file with x, edge_index and y.

    Args:
        name: such as "Amazon/Photo", or a path that ends in .safetensors.
        mirror: a folder with raw data sets, tried first.

    Raises:
        ConfigError: there is no such set, or it has no nodes to classify.
    """
    if name.endswith(".safetensors"):
        return _read_file(Path(name))
    pools = build(
        "data", {"kind": "pyg", "name": name, **({"mirror": mirror} if mirror else {})}, "data"
    ).load()
    (pool,) = pools
    if not isinstance(pool, NodePool):
        raise ConfigError(f"--data {name}: is a set of {pool.task}; the sets of a key are sets of nodes.")
    return Graph(pool.x, pool.edge_index, pool.y, pool.classes)


def write_graph(path: Path, graph: Graph) -> None:
    """A file that `read_graph` reads again, classes without nodes included."""
    named = {"x": graph.x, "edge_index": graph.edge_index, "y": graph.y}
    save_tensors(path, named, {"classes": str(graph.classes)})


def _read_file(path: Path) -> Graph:
    tensors, metadata = read_tensors(path)
    if not {"x", "edge_index", "y"} <= set(tensors):
        raise ConfigError(f"{path}: needs tensors x [v, f], edge_index [2, e] and y [v].")
    x, edges, y = tensors["x"].float(), tensors["edge_index"].long(), tensors["y"].long()
    if x.dim() != 2 or edges.dim() != 2 or len(edges) != 2 or y.shape != x.shape[:1] or not len(y):
        raise ConfigError(f"{path}: x, edge_index and y should have shapes [v, f], [2, e] and [v].")
    if edges.numel() and not 0 <= int(edges.min()) <= int(edges.max()) < len(x):
        raise ConfigError(f"{path}: edge_index names nodes that x does not have.")
    seen = int(torch.max(y)) + 1
    told = metadata.get("classes", "")
    return Graph(x, edges, y, max(seen, int(told)) if told.isdecimal() else seen)
