"""W1: an MLP 64-64-10, 32 samples a client, batches of 16; 1,000 clients, 100 of them in a round."""

from workload import Variant, tables

SAMPLES, BATCH, COHORT = 32, 16, 100


def variants(quick: bool) -> list[Variant]:
    clients, cohort = (20, 6) if quick else (1000, COHORT)
    return [
        Variant(
            "W1",
            mlp(clients, cohort),
            tiers=("T0", "T1", "T2"),
            peers=("flower", "pfl", "fedjax", "loop"),
            rounds=1 if quick else 10,
            repetitions=2 if quick else 5,
        )
    ]


def mlp(clients: int, cohort: int) -> dict[str, object]:
    data = {"kind": "synthetic:Vectors", "count": clients * SAMPLES}
    return tables(data, {"kind": "mlp", "hidden": 64}, clients, cohort, BATCH)
