"""Features and components of graphs, as pure functions of arrays. v nodes, e directed edges, f features."""

from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import scipy.sparse as sparse

from fedsim.data.pool import Integers
from fedsim.data.store import Arrays

Features = npt.NDArray[np.float32]


def normalised(x: Features, how: Literal["none", "row", "unit"], scale: float) -> Features:
    """[v, f]: rows over their absolute sum ("row") or length ("unit"), times `scale`; zero rows stay."""
    if how != "none":
        order = 1 if how == "row" else 2
        norms = np.linalg.norm(x.astype(np.float64), ord=order, axis=1, keepdims=True)
        x = (x / np.where(norms == 0.0, 1.0, norms)).astype(np.float32)
    return x if scale == 1.0 else (x * np.float32(scale))


def connected(edge_index: Integers, nodes: int) -> tuple[Integers, Integers]:
    """The nodes of the largest weakly connected component, ascending, and its edges [2, e] renumbered.

    Of equally large components, the one with the lowest node.
    """
    ones = np.ones(edge_index.shape[1], dtype=np.int8)
    matrix = sparse.csr_array((ones, (edge_index[0], edge_index[1])), shape=(nodes, nodes))
    _, component = sparse.csgraph.connected_components(matrix, directed=False)
    inside = component == np.bincount(component).argmax()
    place = np.cumsum(inside, dtype=np.int64) - 1
    kept = inside[edge_index].all(axis=0)
    return np.flatnonzero(inside), place[edge_index[:, kept]]


def degrees(arrays: Arrays, cap: int) -> Features:
    """[v, min(cap, largest degree) + 1] one-hot: how many edges leave each node of the packed graphs."""
    shift = np.repeat(arrays["node_ends"][:-1], np.diff(arrays["edge_ends"]))
    degree = np.bincount(arrays["edge_index"][0] + shift, minlength=int(arrays["node_ends"][-1]))
    capped = np.minimum(degree, cap)
    return np.eye(int(capped.max()) + 1, dtype=np.float32)[capped]


def squeezed(x: Features, threshold: float) -> dict[str, npt.NDArray[Any]]:
    """The features as arrays to keep: sparse rows where fewer than `threshold` of the values are not 0."""
    if np.count_nonzero(x) >= threshold * x.size:
        return {"x": x}
    rows = sparse.csr_array(x)
    shape = np.array(x.shape, dtype=np.int64)
    return {"x_values": rows.data, "x_columns": rows.indices, "x_ends": rows.indptr, "x_shape": shape}


def unsqueezed(arrays: Arrays) -> Features:
    """[v, f] float32, from what `squeezed` kept."""
    if "x" in arrays:
        return np.asarray(arrays["x"], dtype=np.float32)
    parts = (arrays["x_values"], arrays["x_columns"], arrays["x_ends"])
    return np.asarray(sparse.csr_array(parts, shape=tuple(arrays["x_shape"])).toarray(), dtype=np.float32)
