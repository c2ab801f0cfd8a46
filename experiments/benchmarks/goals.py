"""What is to be reached: ratios on one machine in one run, against the peer's best setting.

A row `A/B` reads: the round of A takes at most 1 / goal of that of B. For tiers the better of our backends
counts, unless one is named. Where a goal is None, the ratio is reported only.
"""

GOALS: dict[str, dict[str, float | None]] = {
    "W1": {
        "T0/flower": 10,
        "T1/flower": 32,
        "T1 ray/flower": 20,
        "T2/flower": 150,
        "T0/pfl": 1.1,
        "T1/pfl": 3.5,
        "T2/pfl": 16,
        "T2/fedjax": None,
        "T1/loop": 1.9,
        "T2/loop": 8,
    },
    "W2": {
        "T0/flower": None,
        "T1/flower": 3.2,
        "T1 ray/flower": 2.8,
        "T1/pfl": 2.1,
        "T1/fedjax": None,
        "T1/loop": 2.9,
        "T2/T1": None,
    },
    "W3 10 dense": {"T2/flower": 28, "T2/loop": 2.8, "T1/loop": None},
    "W3 10 sparse": {"T2/flower": 110, "T2/loop": 11, "T1/loop": None},
    "W3 100 dense": {"T2/flower": 14, "T2/loop": 3, "T1/loop": None},
    "W3 100 sparse": {"T2/flower": 28, "T2/loop": 6, "T1/loop": None},
    "W4": {"T0/flower": 5, "T1/flower": 10, "T1/loop": None, "T1/pfl": None},
    "W5": {"T1 1000/10000": 1 / 1.1, "T2 1000/10000": 1 / 1.1},
}
LIMITS: dict[tuple[str, str, str], float] = {
    ("W1", "in-process", "startup_s"): 3,
    ("W1", "ray", "startup_s"): 9,
    ("W1", "in-process", "peak_mb"): 450,
    ("W2", "in-process", "peak_mb"): 1200,
}
AGREEMENT = 1e-5  # |a - b| / |b| of the models after the first round, float32
FINAL_AGREEMENT = 1e-2  # after all rounds: training amplifies rounding, W2 from 1e-6 to 6e-4 in a round
