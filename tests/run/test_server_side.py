"""What the server offers its rule: trusted training is a client's, predictions are the model's."""

import pytest
import torch

from fedsim.contracts import Batch, ClientData, ClientInfo
from fedsim.errors import ConfigError
from fedsim.federation import TrainOrder
from fedsim.run.server_side import ServerSide
from fedsim.training.evaluate import evaluate
from fedsim.training.functional import FunctionalModel
from fedsim.training.sequential import train_client

FEDERATION = {"clients": 6, "clients_per_round": 4, "partition": "iid"}


def started(parts):
    layout = parts.layout
    return layout.flatten(parts.initial), layout.integers_of(parts.initial)


@pytest.fixture(scope="module")
def parts(make_parts):
    return make_parts(federation={**FEDERATION, "trusted": 100})


def test_a_trusted_update_is_what_one_more_client_with_those_rows_would_send(parts):
    model, integers = started(parts)
    trusted = parts.data.trusted
    data = ClientData(trusted, trusted, trusted, parts.data.spec)
    sent = train_client(
        parts.plugins.method, ClientInfo(6, data), TrainOrder(3, model, integers), None, parts.seed
    )
    server = ServerSide(parts).of(3, model, integers)
    assert torch.equal(server.trusted.update(), sent.update)
    assert server.trusted.update().norm() > 0


def test_accuracy_and_predictions_are_the_model_s(parts):
    model, integers = started(parts)
    server = ServerSide(parts).of(1, model, integers)
    tensors = parts.layout.unflatten(model, integers)
    known = evaluate(parts.program.model, tensors, {"t": parts.data.trusted})["t_accuracy"].mean
    assert server.trusted.accuracy(model) == known
    inputs = torch.rand(5, *server.spec.shape, generator=torch.Generator().manual_seed(0))
    expected = FunctionalModel(parts.program.model)(
        tensors, Batch(inputs, torch.zeros(5, dtype=torch.int64))
    )[0]
    assert torch.equal(server.predict(model, inputs), expected)


def test_every_server_of_a_round_draws_the_same(parts):
    side, (model, integers) = ServerSide(parts), started(parts)
    first, second = (torch.rand(4, generator=side.of(2, model, integers).rng) for _ in range(2))
    other = torch.rand(4, generator=side.of(3, model, integers).rng)
    assert torch.equal(first, second)
    assert not torch.equal(first, other)


def test_no_trusted_data_unless_asked_for(make_parts):
    plain = make_parts()
    assert ServerSide(plain).of(1, *started(plain)).trusted is None


def test_trusted_rows_come_from_the_training_data_and_no_client_has_them(make_parts, parts):
    plain = make_parts()

    def rows(examples):
        return {tuple(row.flatten().tolist()) for row in examples.batch().x}

    raw = {
        "trusted": len(parts.data.trusted),
        "clients": sum(len(part) for c in parts.data.clients for part in (c.train, c.val, c.test)),
        "before": sum(len(part) for c in plain.data.clients for part in (c.train, c.val, c.test)),
    }
    assert raw == {"trusted": 100, "clients": raw["before"] - 100, "before": raw["before"]}
    kept = rows(parts.data.trusted)
    for client in parts.data.clients:
        for part in (client.train, client.val, client.test):
            assert not kept & rows(part)
    assert not kept & rows(parts.data.test)
    assert parts.data.facts["trusted"] == 100
    assert len(parts.data.test) == len(plain.data.test)


def test_trusted_rows_follow_the_labels(parts):
    counts = torch.bincount(parts.data.trusted.labels(), minlength=10)
    assert int(counts.min()) >= 9


@pytest.mark.parametrize("trusted", [1438, 100000])
def test_more_trusted_rows_than_there_are(make_parts, trusted):
    with pytest.raises(
        ConfigError, match=rf"federation\.trusted: found {trusted}, but digits has \d+ training"
    ):
        make_parts(federation={**FEDERATION, "trusted": trusted})
