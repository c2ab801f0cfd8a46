"""A model of 4 numbers, a counter, and arithmetic that is exact in any order."""

import numpy as np

OPENED = []


def initial():
    return {"weight": np.arange(4, dtype=np.float64), "steps": np.zeros((), dtype=np.int64)}


def local_step(arrays, partition, learning_rate):
    moved = arrays["weight"] + learning_rate * 2.0 ** -(partition % 4)
    return {"weight": moved, "steps": arrays["steps"] + 1}
