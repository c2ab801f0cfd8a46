"""Who is asked in a round: exactly the declared number of partitions, in every round."""

from collections.abc import Collection

import torch

from fedsim import rng
from fedsim.errors import RoundError


def draw_cohort(
    seed: int, round: int, clients: int, size: int, forced: Collection[int] = ()
) -> tuple[int, ...]:
    """Partition numbers of one round's cohort, ascending.

    The draw depends on the seed and the round alone, not on what other rounds drew.

    Args:
        seed: of the run.
        round: counts from 1.
        clients: all partitions are 0 to clients - 1.
        size: of the cohort.
        forced: partitions that take part in any case; the others fill up the cohort.

    Raises:
        RoundError: more forced partitions than places, or more places than clients.
    """
    if not len(forced) <= size <= clients:
        raise RoundError(
            f"Round {round}: a cohort of {size} cannot hold {len(forced)} forced of {clients} clients."
        )
    order = torch.randperm(clients, generator=rng.stream(seed, "cohort", round)).tolist()
    free = [partition for partition in order if partition not in forced]
    return tuple(sorted([*forced, *free[: size - len(forced)]]))
