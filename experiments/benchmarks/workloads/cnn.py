"""W2: two 5x5 convolutions and two dense layers, 1.63 M parameters, 50 images of 32x32x3, batches of 10."""

from workload import Variant, tables

SAMPLES, BATCH = 50, 10


def variants(quick: bool) -> list[Variant]:
    clients, cohort = (4, 2) if quick else (1000, 50)
    data = {"kind": "synthetic:Images", "count": clients * (BATCH if quick else SAMPLES)}
    model = {"kind": "cnn", "channels": [32, 64], "kernel": 5, "hidden": 384}
    if quick:
        model |= {"channels": [4, 4], "hidden": 8}
    return [
        Variant(
            "W2",
            tables(data, model, clients, cohort, 5 if quick else BATCH),
            tiers=("T0", "T1", "T2"),
            peers=("flower", "pfl", "fedjax", "loop"),
            rounds=1,
            repetitions=2 if quick else 4,
            places={"T0": ("in-process:2",), "T2": ("in-process:1",)},  # T2 is for the rule of `auto`
        )
    ]
