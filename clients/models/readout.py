"""From node states to one state per graph."""

from typing import Literal

from torch import Tensor
from torch_geometric.nn import global_add_pool, global_mean_pool

from fedsim.contracts import Batch

Readout = Literal["sum", "mean"]
_POOLS = {"sum": global_add_pool, "mean": global_mean_pool}


def read_out(states: Tensor, batch: Batch, readout: Readout) -> Tensor:
    """Pool each graph's nodes; a graph without nodes gives zeros.

    Args:
        states: [v, w] node states.
        batch: its `graph` [v] says which of the `len(batch.y)` graphs each node belongs to.
        readout: sum or mean over a graph's nodes.

    Returns:
        [g, w].
    """
    pooled: Tensor = _POOLS[readout](states, batch.graph, len(batch.y))
    return pooled
