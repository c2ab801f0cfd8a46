import copy
import math

import pytest
import torch

from fedsim.errors import ConfigError
from fedsim.training.optimizers import Adam, Sgd

STEPS, SIZE = 200, 11


def gradients(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)


def ours(optimizer, start, given):
    parameters = start.clone()
    state = optimizer.init(parameters)
    for gradient in given:
        optimizer.step(parameters, gradient.clone(), state)
    return parameters, state


def theirs(make, start, given):
    parameters = start.clone().requires_grad_()
    optimizer = make([parameters])
    for gradient in given:
        parameters.grad = gradient.clone()
        optimizer.step()
    return parameters.detach()


PAIRS = [
    (Sgd(learning_rate=0.1), lambda p: torch.optim.SGD(p, lr=0.1)),
    (Sgd(learning_rate=0.1, momentum=0.9), lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9)),
    (
        Sgd(learning_rate=0.1, momentum=0.9, weight_decay=0.02, nesterov=True),
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.02, nesterov=True),
    ),
    (Sgd(learning_rate=0.1, weight_decay=0.02), lambda p: torch.optim.SGD(p, lr=0.1, weight_decay=0.02)),
    (Adam(learning_rate=0.01), lambda p: torch.optim.Adam(p, lr=0.01)),
    (
        Adam(learning_rate=0.01, betas=(0.5, 0.9), epsilon=1e-3, weight_decay=0.1),
        lambda p: torch.optim.Adam(p, lr=0.01, betas=(0.5, 0.9), eps=1e-3, weight_decay=0.1),
    ),
    (
        Adam(learning_rate=0.01, weight_decay=0.1, decoupled=True),
        lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.1),
    ),
]


@pytest.mark.parametrize(("optimizer", "make"), PAIRS)
def test_many_steps_equal_torch(optimizer, make):
    start, given = gradients(SIZE), gradients(STEPS, SIZE)
    found, _ = ours(optimizer, start, given)
    torch.testing.assert_close(found, theirs(make, start, given), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("optimizer", [pair[0] for pair in PAIRS])
def test_a_stack_of_clients_is_each_client_alone(optimizer):
    start, given = gradients(4, SIZE), gradients(20, 4, SIZE)
    stacked, _ = ours(optimizer, start, given)
    for row in range(4):
        alone, _ = ours(optimizer, start[row], given[:, row])
        torch.testing.assert_close(stacked[row], alone, rtol=1e-15, atol=1e-15)


@pytest.mark.parametrize("optimizer", [pair[0] for pair in PAIRS])
def test_state_continues_where_it_stopped(optimizer):
    start, given = gradients(SIZE), gradients(20, SIZE)
    whole, _ = ours(optimizer, start, given)
    parameters, state = ours(optimizer, start, given[:9])
    state = copy.deepcopy(state)
    for gradient in given[9:]:
        optimizer.step(parameters, gradient.clone(), state)
    assert torch.equal(parameters, whole)


def test_state_has_the_shape_of_the_parameters_or_none():
    parameters = torch.zeros(2, 3)
    assert Sgd(learning_rate=1).init(parameters) == {}
    for value in (
        Sgd(learning_rate=1, momentum=0.5).init(parameters) | Adam(learning_rate=1).init(parameters)
    ).values():
        assert tuple(value.shape) in {(2, 3), ()}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Sgd(learning_rate=-1.0), "learning_rate must be above 0 and finite, found -1.0"),
        (lambda: Sgd(learning_rate=0.0), "learning_rate must be above 0"),
        (lambda: Sgd(learning_rate=math.nan), "learning_rate must be above 0"),
        (lambda: Sgd(learning_rate=math.inf), "finite, found inf"),
        (lambda: Sgd(learning_rate=1, momentum=1.0), "momentum must be at least 0 and below 1, found 1.0"),
        (lambda: Sgd(learning_rate=1, weight_decay=-0.1), "weight_decay must be at least 0"),
        (lambda: Sgd(learning_rate=1, nesterov=True), "nesterov needs momentum above 0"),
        (lambda: Adam(learning_rate=0), "learning_rate must be above 0"),
        (lambda: Adam(learning_rate=1, betas=(0.9, 1.0)), "betas must be at least 0 and below 1, found 1.0"),
        (lambda: Adam(learning_rate=1, epsilon=0), "epsilon must be above 0"),
        (lambda: Adam(learning_rate=1, weight_decay=math.nan), "weight_decay must be at least 0"),
    ],
)
def test_illegal_values_are_named(make, message):
    with pytest.raises(ConfigError, match=message):
        make()


def test_smallest_legal_values():
    Sgd(learning_rate=1e-300, momentum=0.0, weight_decay=0.0)
    Adam(learning_rate=1e-300, betas=(0.0, 0.0), epsilon=1e-300)
