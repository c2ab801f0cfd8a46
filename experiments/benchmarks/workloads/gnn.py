"""W3: a two-layer GCN, hidden 64, 250 nodes a client, 1,433 features (1.27 % or all not zero), full batch."""

from contenders import LOCAL
from workload import Variant, tables


def variants(quick: bool) -> list[Variant]:
    counts = (3,) if quick else (10, 100)
    sizes = {"nodes": 20, "features": 40} if quick else {}
    kinds = {"dense": {"density": 1.0}, "sparse": {"density": 0.05} if quick else {}}
    return [
        Variant(
            f"W3 {clients} {kind}",
            tables(
                {"kind": "synthetic:GraphBlocks", "blocks": clients, **sizes, **options},
                {"kind": "gcn", "hidden": 64, "dropout": 0.0},
                clients,
                clients,
                "full",
            ),
            tiers=("T1", "T2"),
            peers=("flower", "loop"),
            rounds=1 if quick else 5 if clients == 10 else 3,
            repetitions=2 if quick else 5,
            places={"T1": LOCAL, "T2": LOCAL},
        )
        for clients in counts
        for kind, options in kinds.items()
    ]
