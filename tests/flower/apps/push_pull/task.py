import random

import numpy as np

SIDE = []  # the server's and the clients' side each have their own


def step(vector, partition):
    return vector + 2.0**-partition


def cohort(nodes, size):
    return random.sample(nodes, size)


def noise(size, top):
    return np.random.randint(0, top, size).astype(np.float64)  # noqa: NPY002
