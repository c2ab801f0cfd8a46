"""Node ids as Flower has them, but as a function of seed and partition.

Flower draws them from the operating system, so that whatever is ordered by node id differs from run to run.
"""

from flwr.common.constant import SUPERLINK_NODE_ID

from fedsim.rng import derive

_TAKEN = frozenset({0, SUPERLINK_NODE_ID})  # Flower reads 0 as "not set", and 1 is the server's


def node_ids(seed: int, clients: int) -> tuple[int, ...]:
    """One positive 63-bit id per partition, in partition order; all different."""
    found: dict[int, int] = {}
    for partition in range(clients):
        attempt = 0
        while (node := derive(seed, "node", attempt, partition)) in _TAKEN or node in found:
            attempt += 1
        found[node] = partition
    return tuple(found)
