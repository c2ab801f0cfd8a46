"""Ditto (Li et al., ICML 2021): a personal model, pulled towards the received one."""

import copy
from dataclasses import dataclass

import torch
from torch.nn import functional

from fedsim.contracts import ClientInfo, LocalProgram, ModelBuilder, Phase
from fedsim.federation import EvaluateOrder
from fedsim.params import Layout
from fedsim.training.functional import model_tensors
from fedsim.training.losses import supervised_losses
from fedsim.training.method import WithoutState
from fedsim.training.optimizers import Sgd
from fedsim.training.sequential import evaluate_client


@dataclass(frozen=True, kw_only=True)
class Ditto(WithoutState):
    model: ModelBuilder
    pull: float
    batch_size: int
    optimizer: Sgd

    def init(self, client, rng):
        named = model_tensors(self.model.build(client.spec))
        return {"personal/" + name: value for name, value in named.items()}

    def program(self, client: ClientInfo, round: int) -> LocalProgram:
        model = self.model.build(client.spec)
        plain = supervised_losses(model, "personal/")

        def anchored(tensors, batch, context):
            losses, buffers = plain(tensors, batch, context)
            distance = sum(
                ((tensors["personal/" + name] - received) ** 2).sum()
                for name, received in context.anchor.items()
            )
            return losses + self.pull / 2 * distance, buffers

        common = {"epochs": 1, "batch_size": self.batch_size, "optimizer": self.optimizer}
        shared = Phase(trains=lambda name: not is_personal(name), losses=supervised_losses(model), **common)
        personal = Phase(trains=is_personal, losses=anchored, **common)
        return LocalProgram(model=model, is_shared=everything, phases=(shared, personal), used=personal_only)


def everything(name):
    return True


def is_personal(name):
    return name.startswith("personal/")


def personal_only(tensors):
    return {n.removeprefix("personal/"): value for n, value in tensors.items() if is_personal(n)}


ROUNDS, SIZE, PULL, RATE = 3, 4, 0.7, 0.1


def by_hand(tiny, data):
    server = copy.deepcopy(tiny.seeded().build(data.spec))
    personal = [copy.deepcopy(server) for _ in data.clients]
    total = sum(len(client.train) for client in data.clients)
    for number in range(1, ROUNDS + 1):
        locals_ = []
        for partition, client in enumerate(data.clients):
            local = copy.deepcopy(server)
            for phase, model in enumerate((local, personal[partition])):
                permutations = tiny.orders(number, partition, len(client.train), 1, phase)
                for x, y in tiny.mini_batches(client.train, SIZE, permutations):
                    model.zero_grad()
                    functional.cross_entropy(model.head(torch.tanh(model.body(x))), y).backward()
                    with torch.no_grad():
                        for own, received in zip(model.parameters(), server.parameters(), strict=True):
                            pull = PULL * (own - received) if phase else 0.0
                            own -= RATE * (own.grad + pull)
            locals_.append(local)
        with torch.no_grad():
            for name, value in server.named_parameters():
                value.copy_(
                    sum(
                        len(client.train) / total * local.get_parameter(name)
                        for client, local in zip(data.clients, locals_, strict=True)
                    )
                )
    return server, personal


def test_personal_models_equal_the_hand_written_loop(tiny):
    data = tiny.federated((10, 7))
    method = Ditto(model=tiny.seeded(), pull=PULL, batch_size=SIZE, optimizer=Sgd(learning_rate=RATE))
    played = tiny.play(method, data, ROUNDS)
    server, personal = by_hand(tiny, data)
    tiny.assert_equal(played.tensors, dict(server.named_parameters()))
    for partition, model in enumerate(personal):
        expected = {"personal/" + name: value for name, value in model.named_parameters()}
        tiny.assert_equal(played.private[partition], expected)


def test_a_client_is_evaluated_on_its_personal_model(tiny):
    data = tiny.federated((10, 7))
    method = Ditto(model=tiny.seeded(), pull=PULL, batch_size=SIZE, optimizer=Sgd(learning_rate=RATE))
    played = tiny.play(method, data, ROUNDS)
    _, personal = by_hand(tiny, data)
    vector = Layout.of(played.tensors).flatten(played.tensors)
    order = EvaluateOrder(ROUNDS, vector, {})
    found = evaluate_client(method, ClientInfo(1, data.clients[1]), order, played.private[1], tiny.SEED)
    test = data.clients[1].test
    logits = personal[1].head(torch.tanh(personal[1].body(test.x)))
    assert found.metrics["test_accuracy"].total == (logits.argmax(1) == test.y).sum()
    assert found.metrics["test_accuracy"].count == len(test)
    expected = functional.cross_entropy(logits, test.y).item()
    assert abs(found.metrics["test_loss"].mean - expected) < 1e-10
