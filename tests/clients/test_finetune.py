import copy

import pytest
import torch
from torch.nn import functional

from clients.finetune import FineTune
from clients.supervised import Supervised
from fedsim import rng
from fedsim.contracts import ClientInfo
from fedsim.errors import ConfigError
from fedsim.federation import EvaluateOrder
from fedsim.params import Layout
from fedsim.training.optimizers import Sgd
from fedsim.training.sequential import evaluate_client

ROUNDS, SIZE, RATE = 3, 4, 0.1
COMMON = {"optimizer": Sgd(learning_rate=RATE), "batch_size": SIZE}


def test_the_federation_is_that_of_plain_training(tiny):
    data = tiny.federated((10, 7))
    tuned = tiny.play(FineTune(model=tiny.seeded(), tune_epochs=3, **COMMON), data, ROUNDS)
    plain = tiny.play(Supervised(model=tiny.seeded(), **COMMON), data, ROUNDS)
    tiny.assert_equal(tuned.tensors, plain.tensors, rtol=0)


@pytest.mark.parametrize("rate", [None, 0.3])
def test_the_model_is_tuned_by_hand_before_it_is_measured(tiny, hand, rate):
    data = tiny.federated((10, 7))
    optimizer = None if rate is None else Sgd(learning_rate=rate)
    method = FineTune(model=tiny.seeded(), tune_epochs=3, tune_optimizer=optimizer, **COMMON)
    played = tiny.play(method, data, ROUNDS)
    order = EvaluateOrder(ROUNDS, Layout.of(played.tensors).flatten(played.tensors), {})
    client = ClientInfo(1, data.clients[1])
    found = evaluate_client(method, client, order, None, tiny.SEED).metrics
    model = copy.deepcopy(tiny.seeded().build(data.spec))
    model.load_state_dict(played.tensors)
    stream = rng.stream(tiny.SEED, "shuffle/tune/0", ROUNDS, 1)
    orders = [torch.randperm(7, generator=stream) for _ in range(3)]
    batches = tiny.mini_batches(client.data.train, SIZE, orders)
    hand.descend(model, model.parameters(), batches, RATE if rate is None else rate)
    logits = model.head(torch.tanh(model.body(client.data.test.x)))
    expected = functional.cross_entropy(logits, client.data.test.y).item()
    assert found["test_loss"].mean == pytest.approx(expected, rel=1e-10)


def test_an_epoch_count_out_of_range_is_refused(tiny):
    with pytest.raises(ConfigError, match="tune_epochs must be at least 1, found 0"):
        FineTune(model=tiny.seeded(), tune_epochs=0)
