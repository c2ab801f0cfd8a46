"""Flower's own strategies in our round loop."""

import logging

import numpy as np
import pytest
import torch
from flwr.serverapp import strategy as stock

from fedsim.contracts import Cohort, Server
from fedsim.errors import ConfigError, PluginError, RoundError
from fedsim.flower.stock_strategy import StockStrategy, adapt
from fedsim.params import Layout
from fedsim.rng import stream
from strategies.fedavg import FedAvg

LAYOUT = Layout((("a.weight", (2, 3), torch.float32), ("a.bias", (2,), torch.float32)), ())
MODEL = torch.linspace(-1, 1, LAYOUT.size)


def cohort(clients=7, round=1, dtype=torch.float32):
    rows = torch.randn(clients, LAYOUT.size, generator=stream(3, "rows", round), dtype=dtype)
    return Cohort(
        round=round,
        partitions=tuple(range(clients)),
        updates=rows,
        examples=torch.arange(1, clients + 1) * 10,
        layout=LAYOUT,
    )


def server(model=MODEL):
    return Server(model=model, rng=stream(0, "rule"))


def run(rule, rounds=3, state=None, model=MODEL, first=1):
    """Some rounds of a rule; returns the state and the models."""
    state, models = rule.init(model) if state is None else state, []
    for number in range(first, first + rounds):
        state, decision = rule.step(state, cohort(round=number), server(model))
        model = model + decision.update
        models.append(model)
    return state, models


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_stock_fedavg_is_our_fedavg(dtype):
    rule = adapt(stock.FedAvg, {}, "strategy")
    replies = cohort(dtype=dtype)
    _, theirs = rule.step({}, replies, server(MODEL.to(dtype)))
    _, ours = FedAvg().step({}, replies, server(MODEL.to(dtype)))
    assert theirs.update.dtype == torch.float64  # so that adding it gives their arrays to the bit
    torch.testing.assert_close(
        theirs.update, ours.update.double(), rtol=0, atol=1e-6 if dtype == torch.float32 else 1e-14
    )


def test_momentum_follows_its_definition_over_rounds():
    rule = adapt(stock.FedAvgM, {"server_learning_rate": 0.5, "server_momentum": 0.9}, "strategy")
    _, models = run(rule)
    model, velocity = MODEL.double(), torch.zeros(LAYOUT.size, dtype=torch.float64)
    for number, found in enumerate(models, start=1):
        rows, weights = cohort(round=number).updates.double(), torch.arange(1, 8).double()
        velocity = 0.9 * velocity - (weights[:, None] * rows).sum(0) / weights.sum()
        model = model - 0.5 * velocity
        torch.testing.assert_close(found.double(), model, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("FedAdam", {"eta": 0.01}),
        ("FedYogi", {}),
        ("FedAdagrad", {}),
        ("FedMedian", {}),
        ("FedTrimmedAvg", {"beta": 0.2}),
        ("Krum", {"num_malicious_nodes": 1}),
        ("MultiKrum", {"num_malicious_nodes": 1, "num_nodes_to_select": 3}),
        ("Bulyan", {"num_malicious_nodes": 1}),
    ],
)
def test_stock_rules_run_and_continue_from_their_state_to_the_bit(name, options):
    rule = adapt(getattr(stock, name), options, "strategy")
    _, whole = run(rule, rounds=4)
    state, start = run(rule, rounds=2)
    _, rest = run(rule, rounds=2, state=state, model=start[-1], first=3)
    assert all(torch.equal(a, b) for a, b in zip(whole, start + rest, strict=True))


def test_median_and_krum_follow_their_definitions():
    replies = cohort()
    _, median = adapt(stock.FedMedian, {}, "strategy").step({}, replies, server())
    expected = torch.from_numpy(np.median(replies.updates.numpy(), axis=0))
    torch.testing.assert_close(median.update, expected.double(), rtol=0, atol=1e-6)
    _, krum = adapt(stock.Krum, {"num_malicious_nodes": 1}, "strategy").step({}, replies, server())
    assert min((krum.update - row).abs().max() for row in replies.updates) < 1e-6


def test_a_step_is_a_function_of_its_arguments():
    rule = adapt(stock.FedAdam, {}, "strategy")
    state, _ = rule.step({}, cohort(), server())
    kept = {name: tensor.clone() for name, tensor in state.items()}
    first = rule.step(state, cohort(round=2), server())[1].update
    second = rule.step(state, cohort(round=2), server())[1].update
    assert torch.equal(first, second)
    assert state.keys() == kept.keys()
    assert all(torch.equal(state[name], kept[name]) for name in kept)


def test_global_generators_stay_untouched():
    before = (torch.get_rng_state(), np.random.get_state()[1].copy())  # noqa: NPY002
    adapt(stock.FedAvg, {}, "strategy").step({}, cohort(), server())
    assert torch.equal(torch.get_rng_state(), before[0])
    assert (np.random.get_state()[1] == before[1]).all()  # noqa: NPY002


def test_half_precision_tensors_and_a_cohort_of_one():
    layout = Layout((("w", (2, 2), torch.bfloat16),), ())
    one = Cohort(
        round=1, partitions=(4,), updates=torch.ones(1, 4), examples=torch.tensor([3]), layout=layout
    )
    _, decision = adapt(stock.FedAvg, {}, "strategy").step({}, one, server(torch.zeros(4)))
    assert decision.update.tolist() == [1.0] * 4


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"min_train_nodes": 3}, r"strategy.min_train_nodes: fedsim decides this by federation.clients_per"),
        ({"fraction_train": 0.5}, r"strategy.fraction_train: fedsim decides this"),
        ({"serverlearningrate": 1.0}, r"unknown key 'strategy.serverlearningrate' for kind FedAvgM"),
        ({"weighted_by_key": "n"}, r"strategy.weighted_by_key: is set by the platform"),
        ({"server_momentum": "x"}, r"strategy.server_momentum: .*valid number, found \"x\""),
        ({"server_momentum": True}, r"strategy.server_momentum: .*valid number, found true"),
        ({"server_momentum": float("nan")}, r"strategy.server_momentum: wanted a finite number"),
    ],
)
def test_keys_that_cannot_be_set_are_named(options, message):
    with pytest.raises(ConfigError, match=message):
        adapt(stock.FedAvgM, options, "strategy")


def test_a_constructor_that_refuses_names_the_table():
    with pytest.raises(ConfigError, match=r"strategy: FedTrimmedAvg refused its values: .*range \[0, 0.5\)"):
        adapt(stock.FedTrimmedAvg, {"beta": 0.7}, "strategy")


def test_a_missing_argument_is_named():
    with pytest.raises(ConfigError, match=r"strategy.proximal_mu: missing|FedProx sends its clients"):
        adapt(stock.FedProx, {}, "strategy")


def test_instructions_to_clients_are_refused_before_round_1():
    with pytest.raises(ConfigError, match=r"FedProx sends its clients proximal-mu"):
        adapt(stock.FedProx, {"proximal_mu": 0.1}, "strategy")


def test_the_older_api_is_named():
    from flwr.server.strategy import FedAvg as Old

    with pytest.raises(PluginError, match=r'use "flwr.serverapp.strategy:FedAvg"'):
        adapt(Old, {}, "strategy")
    assert adapt(dict, {}, "strategy") is None


class Nothing(stock.FedAvg):
    def aggregate_train(self, server_round, replies):
        return None, None


class Broken(stock.FedAvg):
    def aggregate_train(self, server_round, replies):
        raise KeyError("fc1")


class Forgetful(stock.FedAvg):
    def aggregate_train(self, server_round, replies):
        self.history = object()
        return super().aggregate_train(server_round, replies)


class Explodes(stock.FedAvg):
    def aggregate_train(self, server_round, replies):
        arrays, metrics = super().aggregate_train(server_round, replies)
        return type(arrays)({name: type(a)(a.numpy() * np.inf) for name, a in arrays.items()}), metrics


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        (Nothing, "Nothing aggregated to nothing"),
        (Broken, "Broken raised KeyError: 'fc1'"),
        (Forgetful, "Forgetful keeps its state in 'history', a object"),
        (Explodes, "Explodes made a model that is not finite"),
    ],
)
def test_a_rule_that_fails_is_loud(monkeypatch, rule, message):
    monkeypatch.setattr(StockStrategy, "_made", lambda self: rule())
    with pytest.raises(RoundError, match=message):
        StockStrategy(f"test:{rule.__name__}").step({}, cohort(), server())


def test_flowers_log_of_rounds_that_are_ours_stays_silent(caplog):
    caplog.set_level(logging.INFO, logger="flwr")
    rule = adapt(stock.FedAvg, {}, "strategy")
    rule.init(MODEL)
    rule.step({}, cohort(), server())
    assert caplog.records == []
    assert logging.getLogger("flwr").level == logging.INFO
