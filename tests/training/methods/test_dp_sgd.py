"""DP-SGD (Abadi et al., CCS 2016, Algorithm 1): clip each example's gradient, add noise, average."""

import copy
from dataclasses import dataclass

import pytest
import torch
from torch.nn import functional

from fedsim import rng
from fedsim.contracts import STEP_NOISE, ClientInfo, LocalProgram, ModelBuilder, Phase
from fedsim.errors import RoundError
from fedsim.federation import TrainOrder
from fedsim.params import Layout
from fedsim.training.functional import model_tensors
from fedsim.training.initial import initial_model
from fedsim.training.losses import supervised_losses
from fedsim.training.method import WithoutState
from fedsim.training.optimizers import Sgd
from fedsim.training.sequential import train_client

GAUSS = STEP_NOISE + "gauss"


@dataclass(frozen=True, kw_only=True)
class DpSgd(WithoutState):
    model: ModelBuilder
    clip: float
    sigma: float
    batch_size: int
    optimizer: Sgd

    def program(self, client: ClientInfo, round: int) -> LocalProgram:
        model = self.model.build(client.spec)
        layout = Layout.of(model_tensors(model))

        def draw(batch, rng):
            gauss = torch.randn(layout.size, generator=rng, dtype=layout.dtype)
            return batch, {GAUSS: gauss, **model.draw(batch, rng)}

        def private_mean(gradients, context):
            norms = gradients.norm(dim=1, keepdim=True)
            clipped = gradients / (norms / self.clip).clamp(min=1)
            noise = self.sigma * self.clip * context.noise[GAUSS]
            return (clipped.sum(dim=0) + noise) / len(gradients)

        phase = Phase(
            trains=everything,
            losses=supervised_losses(model),
            combine=private_mean,
            per_example=True,
            draw=draw,
            optimizer=self.optimizer,
            epochs=2,
            batch_size=self.batch_size,
        )
        return LocalProgram(model=model, is_shared=everything, phases=(phase,))


def everything(name):
    return True


ROUNDS, SIZE, CLIP, SIGMA = 3, 4, 0.5, 0.3


def by_hand(tiny, data, dropout):
    server = copy.deepcopy(tiny.seeded(dropout=dropout).build(data.spec))
    total = sum(len(client.train) for client in data.clients)
    for number in range(1, ROUNDS + 1):
        trained = []
        for i, client in enumerate(data.clients):
            model, chance = copy.deepcopy(server), rng.stream(tiny.SEED, "draw/0", number, i)
            parameters = list(model.parameters())
            optimizer = torch.optim.SGD(parameters, lr=0.2, momentum=0.5)
            for xs, ys in tiny.mini_batches(client.train, SIZE, tiny.orders(number, i, len(client.train), 2)):
                size = sum(p.numel() for p in parameters)
                summed = SIGMA * CLIP * torch.randn(size, generator=chance, dtype=torch.float64)
                kept = torch.ones(len(xs), 5)
                if dropout:
                    kept = torch.rand(len(xs), 5, generator=chance, dtype=torch.float64) >= dropout
                for x, y, mask in zip(xs, ys, kept, strict=True):  # one example at a time
                    hidden = torch.tanh(model.body(x)) * mask / (1 - dropout)
                    loss = functional.cross_entropy(model.head(hidden), y)
                    row = torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss, parameters)])
                    summed = summed + row * min(1.0, CLIP / row.norm().item())
                pieces = torch.split(summed / len(xs), [p.numel() for p in parameters])
                for p, piece in zip(parameters, pieces, strict=True):
                    p.grad = piece.view_as(p)
                optimizer.step()
            trained.append(model)
        with torch.no_grad():
            for name, p in server.named_parameters():
                shares = [len(c.train) / total for c in data.clients]
                p.copy_(sum(w * m.get_parameter(name) for w, m in zip(shares, trained, strict=True)))
    return server


@pytest.mark.parametrize("dropout", [0.0, 0.4])
def test_clipped_noisy_steps_equal_the_hand_written_loop(tiny, dropout):
    data = tiny.federated((10, 7))
    method = DpSgd(
        model=tiny.seeded(dropout=dropout),
        clip=CLIP,
        sigma=SIGMA,
        batch_size=SIZE,
        optimizer=Sgd(learning_rate=0.2, momentum=0.5),
    )
    played = tiny.play(method, data, ROUNDS)
    tiny.assert_equal(played.tensors, dict(by_hand(tiny, data, dropout).named_parameters()))


def test_batch_norm_is_refused(tiny):
    data = tiny.federated((10, 7))
    method = DpSgd(
        model=tiny.seeded(norm=True), clip=1.0, sigma=0.0, batch_size=4, optimizer=Sgd(learning_rate=0.1)
    )
    tensors = initial_model(method, data)
    layout = Layout.of(tensors)
    order = TrainOrder(1, layout.flatten(tensors), layout.integers_of(tensors))
    with pytest.raises(RoundError, match="'norm' is a BatchNorm"):
        train_client(method, ClientInfo(0, data.clients[0]), order, None, tiny.SEED)
