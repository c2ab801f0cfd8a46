"""One client's FedAvg is centralised training, step by step."""

import copy
from dataclasses import dataclass, replace

import pytest
import torch
from torch.nn import functional

from fedsim.contracts import ClientInfo, LocalProgram, ModelBuilder, Phase
from fedsim.training.losses import supervised_losses
from fedsim.training.method import WithoutState
from fedsim.training.optimizers import Sgd

ROUNDS, EPOCHS, SIZE = 4, 2, 8


@dataclass(frozen=True, kw_only=True)
class Plain(WithoutState):
    model: ModelBuilder
    optimizer: Sgd
    keep_optimizer: bool

    def program(self, client: ClientInfo, round: int) -> LocalProgram:
        model = self.model.build(client.spec)
        phase = Phase(
            trains=lambda name: True,
            losses=supervised_losses(model),
            optimizer=self.optimizer,
            epochs=EPOCHS,
            batch_size=SIZE,
        )
        return LocalProgram(
            model=model, is_shared=lambda name: True, phases=(phase,), keep_optimizer=self.keep_optimizer
        )


def centralised(tiny, model, data, keep_optimizer, nesterov):
    """torch's modules and optimiser over the same epochs; a new optimiser each round unless kept."""
    model = copy.deepcopy(model)

    def fresh():
        return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-3, nesterov=nesterov)

    optimizer = fresh()
    for number in range(1, ROUNDS + 1):
        optimizer = optimizer if keep_optimizer else fresh()
        for x, y in tiny.mini_batches(data, SIZE, tiny.orders(number, 0, len(data), EPOCHS)):
            optimizer.zero_grad()
            hidden = torch.tanh(model.norm(model.body(x)))
            functional.cross_entropy(model.head(hidden), y).backward()
            optimizer.step()
    return model


@pytest.mark.parametrize("keep_optimizer", [False, True])
@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.float64, 1e-12)])
def test_one_client_is_centralised_training(tiny, dtype, tolerance, keep_optimizer, nesterov):
    data = tiny.federated((21,))
    template = tiny.seeded(dtype, norm=True).build(data.spec)
    optimizer = Sgd(learning_rate=0.1, momentum=0.9, weight_decay=1e-3, nesterov=nesterov)
    method = Plain(model=tiny.seeded(dtype, norm=True), optimizer=optimizer, keep_optimizer=keep_optimizer)
    played = tiny.play(method, data, ROUNDS, dtype=dtype)
    rows = replace(data.clients[0].train, x=data.clients[0].train.x.to(dtype))
    expected = centralised(tiny, template, rows, keep_optimizer, nesterov).state_dict()
    assert set(played.tensors) == set(expected)
    for name, value in expected.items():
        found = played.tensors[name]
        assert found.dtype == value.dtype
        assert (found - value).double().norm() <= tolerance * value.double().norm(), name
    assert played.updates[0][0].steps == EPOCHS * 3
