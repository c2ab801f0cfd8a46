"""W4: ten million parameters and hardly any training; 20 clients in a round."""

from contenders import LOCAL
from workload import Variant, tables

SAMPLES, COHORT = 4, 20
WIDTHS = {10_000: 120, 100_000: 280, 1_000_000: 960, 10_000_000: 3120}  # hidden, by parameters


def variants(quick: bool) -> list[Variant]:
    return [variant("W4", 10_000 if quick else 10_000_000, quick)]


def variant(name: str, parameters: int, quick: bool) -> Variant:
    """64 features, two hidden layers of equal width (one at 10,000 parameters), 10 classes."""
    clients, width = (4, 8) if quick else (COHORT, WIDTHS[parameters])
    hidden = [width] if parameters == 10_000 else [width, width]
    data = {"kind": "synthetic:Vectors", "count": clients * SAMPLES}
    return Variant(
        name,
        tables(data, {"kind": "mlp", "hidden": hidden}, clients, clients, SAMPLES),
        tiers=("T0", "T1", "T2"),
        peers=("flower", "pfl", "fedjax", "loop"),
        rounds=1,
        repetitions=2 if quick else 5,
        places={"T0": LOCAL, "T2": LOCAL},
        shown={"parameters": parameters},
    )
