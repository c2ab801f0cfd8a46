import copy
import dataclasses

import pytest
import torch
from torch.nn import functional

from clients.ditto import Ditto
from fedsim.contracts import ClientInfo
from fedsim.errors import ConfigError
from fedsim.federation import EvaluateOrder
from fedsim.params import Layout
from fedsim.training.optimizers import Sgd
from fedsim.training.sequential import evaluate_client

ROUNDS, SIZE, RATE, PULL = 3, 4, 0.1, 0.7


def by_hand(tiny, hand, data):
    server = copy.deepcopy(tiny.seeded().build(data.spec))
    personal = [copy.deepcopy(server) for _ in data.clients]
    for number in range(1, ROUNDS + 1):
        models = [copy.deepcopy(server) for _ in data.clients]
        for i, client in enumerate(data.clients):
            for phase, model in enumerate((models[i], personal[i])):
                order = tiny.orders(number, i, len(client.train), 2, phase)
                batches = tiny.mini_batches(client.train, SIZE, order)
                hand.descend(model, model.parameters(), batches, RATE, 0.5, pull=phase * PULL, towards=server)
        hand.average(server, models, data)
    return server, personal


def method_of(tiny, **options):
    options = {"pull": PULL, "epochs": 2, "batch_size": SIZE} | options
    return Ditto(model=tiny.seeded(), optimizer=Sgd(learning_rate=RATE, momentum=0.5), **options)


def test_personal_models_equal_the_hand_written_loop(tiny, hand):
    data = tiny.federated((10, 7))
    played = tiny.play(method_of(tiny), data, ROUNDS)
    server, personal = by_hand(tiny, hand, data)
    tiny.assert_equal(played.tensors, dict(server.named_parameters()))
    for partition, model in enumerate(personal):
        expected = {"personal/" + name: value for name, value in model.named_parameters()}
        tiny.assert_equal(played.private[partition], expected)


def test_a_client_is_evaluated_on_its_personal_model(tiny, hand):
    data = tiny.federated((10, 7))
    method = method_of(tiny)
    played = tiny.play(method, data, ROUNDS)
    _, personal = by_hand(tiny, hand, data)
    order = EvaluateOrder(ROUNDS, Layout.of(played.tensors).flatten(played.tensors), {})
    found = evaluate_client(method, ClientInfo(1, data.clients[1]), order, played.private[1], tiny.SEED)
    test = data.clients[1].test
    logits = personal[1].head(torch.tanh(personal[1].body(test.x)))
    assert found.metrics["test_accuracy"].total == (logits.argmax(1) == test.y).sum()
    expected = functional.cross_entropy(logits, test.y).item()
    assert found.metrics["test_loss"].mean == pytest.approx(expected, rel=1e-10)


def test_personal_statistics_are_the_personal_model_s(tiny):
    data = tiny.federated((12, 8))
    played = tiny.play(dataclasses.replace(method_of(tiny), model=tiny.seeded(norm=True)), data, 1)
    assert played.private[0]["personal/norm.num_batches_tracked"] == 6
    assert not torch.equal(played.private[0]["personal/norm.running_mean"], torch.zeros(5))
    assert played.tensors["norm.num_batches_tracked"] == 6


def test_a_bad_pull_is_refused(tiny):
    with pytest.raises(ConfigError, match=r"pull must be at least 0 and finite, found -1\.0"):
        method_of(tiny, pull=-1.0)
