"""W5: W1 with 100, 1,000 and 10,000 registered clients, 100 of them in a round."""

from contenders import LOCAL
from workload import Variant
from workloads.tiny import COHORT, mlp


def variants(quick: bool) -> list[Variant]:
    sizes = (10, 40) if quick else (100, 1000, 10_000)
    return [
        Variant(
            f"W5 {clients}",
            mlp(clients, 5 if quick else COHORT),
            tiers=("T1", "T2"),
            peers=("loop",),
            rounds=1 if quick else 10,
            repetitions=2 if quick else 5,
            places={"T1": LOCAL[:1], "T2": LOCAL[:1]},
            shown={"registered": clients},
        )
        for clients in sizes
    ]
