"""A model with BatchNorm and dropout: buffers are inputs and outputs, masks are drawn outside the model."""

import copy
from dataclasses import dataclass

import pytest
import torch
from torch.nn import functional

from fedsim import rng
from fedsim.contracts import ClientInfo, LocalProgram, ModelBuilder, Phase
from fedsim.training.losses import model_draw, supervised_losses
from fedsim.training.method import WithoutState
from fedsim.training.optimizers import Sgd


@dataclass(frozen=True, kw_only=True)
class Plain(WithoutState):
    model: ModelBuilder
    batch_size: int
    optimizer: Sgd
    private_norm: bool = False  # FedBN, Li et al., ICLR 2021

    def program(self, client: ClientInfo, round: int) -> LocalProgram:
        model = self.model.build(client.spec)
        phase = Phase(
            trains=lambda name: True,
            losses=supervised_losses(model),
            draw=model_draw(model),
            optimizer=self.optimizer,
            epochs=2,
            batch_size=self.batch_size,
        )
        return LocalProgram(
            model=model,
            is_shared=lambda name: not (self.private_norm and name.startswith("norm.")),
            phases=(phase,),
        )


ROUNDS, SIZE, RATE = 3, 4, 0.4


def by_hand(tiny, data, private_norm):
    """torch's own module and optimiser; parameters and float buffers are averaged, the counter is not."""
    server = copy.deepcopy(tiny.seeded(norm=True, dropout=RATE).build(data.spec))
    norms = [copy.deepcopy(server.norm) for _ in data.clients]
    shares = [len(client.train) / sum(len(c.train) for c in data.clients) for client in data.clients]
    for number in range(1, ROUNDS + 1):
        states = []
        for i, client in enumerate(data.clients):
            model, chance = copy.deepcopy(server), rng.stream(tiny.SEED, "draw/0", number, i)
            if private_norm:
                model.norm = norms[i]
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01)
            for x, y in tiny.mini_batches(client.train, SIZE, tiny.orders(number, i, len(client.train), 2)):
                kept = torch.rand(len(x), 5, generator=chance, dtype=torch.float64) >= RATE
                hidden = torch.tanh(model.norm(model.body(x))) * kept / (1 - RATE)
                optimizer.zero_grad()
                functional.cross_entropy(model.head(hidden), y).backward()
                optimizer.step()
            states.append(copy.deepcopy(model.state_dict()))
        server.load_state_dict(
            {
                name: sum(w * state[name] for w, state in zip(shares, states, strict=True))
                if value.is_floating_point()
                else states[0][name]  # the largest client's
                for name, value in server.state_dict().items()
            }
        )
    return server, norms


@pytest.mark.parametrize("private_norm", [False, True])
def test_buffers_and_masks_equal_the_hand_written_loop(tiny, private_norm):
    data = tiny.federated((12, 8))
    model = tiny.seeded(norm=True, dropout=RATE)
    optimizer = Sgd(learning_rate=0.1, momentum=0.9, weight_decay=0.01)
    method = Plain(model=model, batch_size=SIZE, optimizer=optimizer, private_norm=private_norm)
    played = tiny.play(method, data, ROUNDS)
    server, norms = by_hand(tiny, data, private_norm)
    state = server.state_dict()
    if private_norm:
        state = {name: value for name, value in state.items() if not name.startswith("norm.")}
        for partition, norm in enumerate(norms):
            expected = {f"norm.{name}": value for name, value in norm.state_dict().items()}
            tiny.assert_equal(played.private[partition], expected)
    else:
        assert state["norm.num_batches_tracked"] == ROUNDS * 2 * 3
    tiny.assert_equal(played.tensors, state)
