"""The physical limit of a round: its arithmetic and its memory traffic, at rates measured here.

Neither counts a call, an allocation or a copy that a better program could avoid, so nobody reaches it.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from peers.local_training import LocalTraining
from peers.planned import Planned
from peers.torch_networks import network
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

SIDE = 1024  # of the square matrices whose product is timed
LEAST_VALUES = 2**20  # of the vectors whose sum is timed
TRIALS = 12
STEP_PASSES = (
    6  # of a step over the parameters: two reads, gradient written and read, update read and written
)
CLIENT_PASSES = 2  # its row is written, and read by the rule
SPARSE = 0.1  # below this density only the features that are not zero are multiplied


@dataclass(frozen=True)
class Machine:
    """What cores reach.

    Attributes:
        gflops: of a float32 matrix product on one thread, the best of trials.
    """

    gflops: float

    @classmethod
    def measured(cls) -> "Machine":
        """Takes a second."""
        a, b = torch.randn(2, SIDE, SIDE).unbind()
        products: list[Callable[[], Any]] = [lambda: a @ b]
        if torch.backends.mkldnn.is_available():
            left, right = a.to_mkldnn(), b.to_mkldnn()
            products.append(lambda: functional.linear(left, right))  # on some processors the faster one
        return cls(2 * SIDE**3 / min(map(_seconds, products)) / 1e9)


@cache
def gbytes(values: int) -> float:
    """GB/s of adding one vector to another in place on one thread: two reads and a write."""
    a, b = torch.zeros(2, values).unbind()
    return 3 * 4 * values / _seconds(lambda: a.add_(b)) / 1e9


def _seconds(work: Callable[[], Any]) -> float:
    times = []
    for _ in range(TRIALS):
        begun = time.perf_counter()
        work()
        times.append(time.perf_counter() - begun)
    return min(times)


def physical_limit(folder: Path, machine: Machine, workers: int) -> dict[str, float]:
    """Milliseconds of a round on so many cores: the larger of arithmetic and memory traffic.

    Args:
        folder: of the plan.
        machine: as measured.
        workers: each as fast as one alone.
    """
    plan = Planned(folder)
    cohort, size = len(plan.cohort(1)), len(plan.initial)
    flop = cohort * flop_of_client(plan)
    byte = 4 * size * cohort * (STEP_PASSES * _steps(plan) + CLIENT_PASSES)
    rate = gbytes(max(size, LEAST_VALUES))
    arithmetic, memory = (1e-6 * n / r / workers for n, r in ((flop, machine.gflops), (byte, rate)))
    return {
        "ms": max(arithmetic, memory),
        "arithmetic_ms": arithmetic,
        "memory_ms": memory,
        "gflop": flop / 1e9,
        "gflops": machine.gflops * workers,
        "gbyte": byte / 1e9,
        "gbytes": rate * workers,
    }


def flop_of_client(plan: Planned) -> float:
    """Of one client's epoch, counted in the plain loop: products and convolutions, forward and backward."""
    training = LocalTraining(plan, network(plan.known))
    with FlopCounterMode(display=False) as counter:
        training.epoch(1, 0)
    return counter.get_total_flops() - _spared(plan)


def _spared(plan: Planned) -> float:
    """Of products with features that are zero: the first layer, forward and the gradient of its weight."""
    if plan.known["spec"]["task"] != "nodes":
        return 0.0
    features, hidden = plan.graph(plan.cohort(1)[0])[0], plan.known["tensors"][0][1][0]
    density = float(np.count_nonzero(features)) / features.size
    return (1 - density) * 4 * features.size * hidden if density < SPARSE else 0.0


def _steps(plan: Planned) -> int:
    return 1 if "orders" not in plan.arrays else -(-plan.arrays["orders"].shape[-1] // plan.known["batch"])
