from dataclasses import dataclass

import pytest
import torch

from fedsim.contracts import Cohort, DataSpec, Server
from fedsim.params import Layout

INPUTS, HIDDEN, CLASSES = 3, 4, 5
LAYOUT = Layout.of(
    {
        "hidden.weight": torch.zeros(HIDDEN, INPUTS),
        "norm.running_var": torch.zeros(HIDDEN),
        "head.weight": torch.zeros(CLASSES, HIDDEN),
        "head.bias": torch.zeros(CLASSES),
    },
    buffers={"norm.running_var"},
)


def predict(vector, inputs):
    """Logits of a small network whose tensors are those of LAYOUT."""
    named = LAYOUT.unflatten(vector, {})
    hidden = torch.tanh(inputs.to(vector) @ named["hidden.weight"].T.to(vector))
    return hidden @ named["head.weight"].T.to(vector) + named["head.bias"].to(vector)


@dataclass(frozen=True)
class Trusted:
    """The server's own update, known beforehand."""

    row: torch.Tensor

    def update(self):
        return self.row


@pytest.fixture(scope="session")
def layout():
    """Of a network with a hidden layer, a BatchNorm statistic and an output layer; d = 41."""
    return LAYOUT


@pytest.fixture(scope="session")
def cohort_of():
    """A cohort of the given rows; without names for their columns unless they fit LAYOUT."""

    def make(updates, examples=None, partitions=None, round=1, layout=None):
        n, d = updates.shape
        return Cohort(
            round=round,
            partitions=tuple(range(n)) if partitions is None else tuple(partitions),
            updates=updates,
            examples=torch.arange(1, n + 1) if examples is None else torch.tensor(examples),
            layout=layout or (LAYOUT if d == LAYOUT.size else Layout.of({"w": torch.zeros(d)})),
        )

    return make


@pytest.fixture(scope="session")
def server_of():
    """A server whose model has d values; its stream starts anew with every call."""

    def make(d, dtype=torch.float64, trusted=None, seed=0):
        model = torch.linspace(-1, 1, d, dtype=torch.float64).to(dtype)
        return Server(
            model=model,
            rng=torch.Generator().manual_seed(seed),
            spec=DataSpec("rows", (INPUTS,), CLASSES),
            predict=predict if d == LAYOUT.size else None,
            trusted=None if trusted is None else Trusted(trusted),
            trained=LAYOUT.trained if d == LAYOUT.size else None,
        )

    return make


@pytest.fixture(scope="session")
def normal():
    """[n, d] of standard normal values."""

    def make(n, d, dtype=torch.float64, seed=0):
        drawn = torch.randn(n, d, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
        return drawn.to(dtype)

    return make
