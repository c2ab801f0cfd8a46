"""The workloads by name, and the series of sizes behind the picture."""

from dataclasses import replace

from contenders import LOCAL
from workload import Variant
from workloads import cnn, gnn, registered, size, tiny

WORKLOADS = {"W1": tiny, "W2": cnn, "W3": gnn, "W4": size, "W5": registered}
TOGETHER = frozenset({"W5"})  # variants that are compared with each other, and so interleaved
SERIES_ROUNDS, SERIES_REPETITIONS = 2, 2
FLOWER_CLIENTS = 1000  # in a round; with ten times as many, Flower takes minutes for one


def by_clients(quick: bool) -> list[Variant]:
    """W1 with all its clients in every round."""
    return [
        _short(
            replace(
                tiny.variants(quick)[0],
                name=f"clients {count}",
                tables=tiny.mlp(count, count),
                shown={"clients": count},
            ),
            flower=count <= FLOWER_CLIENTS,
        )
        for count in ((4, 8) if quick else (100, 1000, 10_000))
    ]


def by_parameters(quick: bool) -> list[Variant]:
    """W4 with fewer and fewer parameters."""
    return [
        _short(size.variant(f"parameters {count}", count, quick), flower=True)
        for count in (sorted(size.WIDTHS)[:2] if quick else sorted(size.WIDTHS))
    ]


def _short(variant: Variant, *, flower: bool) -> Variant:
    peers = tuple(peer for peer in variant.peers if flower or peer != "flower")
    return replace(
        variant,
        tiers=("T1", "T2"),
        places={"T1": LOCAL, "T2": LOCAL},
        peers=peers,
        rounds=SERIES_ROUNDS,
        repetitions=SERIES_REPETITIONS,
    )
