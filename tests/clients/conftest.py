import importlib.util
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch.nn import functional

# PyG compiles a class while it is imported, which torch 2.13 deprecates; tests turn warnings into errors.
with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    import torch_geometric.nn  # noqa: F401


@pytest.fixture(scope="session", autouse=True)
def _one_thread():
    """As in a worker: threads of tiny operations stall one another on a shared machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def tiny() -> SimpleNamespace:
    """The tiny data, models and round loop of `tests/training`."""
    path = Path(__file__).parents[1] / "training" / "conftest.py"
    spec = importlib.util.spec_from_file_location("tiny_training", path)
    assert spec
    assert spec.loader
    found = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = found  # for pickle
    spec.loader.exec_module(found)
    return SimpleNamespace(**{name: value for name, value in vars(found).items() if not name.startswith("_")})


def descend(model, parameters, batches, rate, momentum=0.0, pull=0.0, towards=None):
    """Plain mini-batch descent with torch's own optimiser, optionally with a proximal term."""
    optimizer = torch.optim.SGD(parameters, lr=rate, momentum=momentum)
    for x, y in batches:
        model.zero_grad()
        hidden = model.body(x) if model.norm is None else model.norm(model.body(x))
        loss = functional.cross_entropy(model.head(torch.tanh(hidden)), y)
        if towards is not None:
            pairs = zip(model.parameters(), towards.parameters(), strict=True)
            loss = loss + pull / 2 * sum(((own - other.detach()) ** 2).sum() for own, other in pairs)
        loss.backward()
        optimizer.step()


def average(server, models, data):
    """The server's parameters become the clients' mean, weighted by training examples."""
    sizes = [len(client.train) for client in data.clients]
    with torch.no_grad():
        for name, value in server.state_dict().items():
            if value.is_floating_point():
                parts = [n / sum(sizes) * m.state_dict()[name] for n, m in zip(sizes, models, strict=True)]
                value.copy_(torch.stack(parts).sum(dim=0))


@pytest.fixture(scope="session")
def hand() -> SimpleNamespace:
    """Pieces of hand-written federations, in torch alone."""
    return SimpleNamespace(descend=descend, average=average)
