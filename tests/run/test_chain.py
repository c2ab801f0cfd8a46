"""What stands before and after a rule, built from the file and played in a round."""

import sys
import types
from dataclasses import dataclass, replace

import pytest
import torch

from fedsim.contracts import Cohort, Decision, Mixture, Server
from fedsim.errors import ConfigError, RoundError
from fedsim.params import Layout
from fedsim.run.adversary import Adversary
from fedsim.run.attack_record import LIVE
from fedsim.run.chain import Chain
from fedsim.run.round_loop import RoundLoop


@dataclass(frozen=True, kw_only=True)
class Halve:
    by: float = 2.0

    def mix(self, updates, server):
        return Mixture(updates / self.by, torch.eye(len(updates)) / self.by)


@dataclass(frozen=True, kw_only=True)
class Shift:
    by: float = 1.0

    def refine(self, model, round, layout, server):
        assert model.shape == server.model.shape == (layout.size,)
        return model + self.by * round


@dataclass(frozen=True, kw_only=True)
class Narrow(Halve):
    def mix(self, updates, server):
        return Mixture(updates[:, :1], torch.eye(len(updates)))


@dataclass(frozen=True, kw_only=True)
class Needy(Halve):
    needs_trusted = True


@pytest.fixture
def plugins(monkeypatch):
    found = types.ModuleType("chain_for_a_test")
    found.Halve, found.Shift, found.Narrow, found.Needy = Halve, Shift, Narrow, Needy
    monkeypatch.setitem(sys.modules, "chain_for_a_test", found)


def strategy(**chain):
    return {"kind": "fedavg", **chain}


def before(name, **options):
    return {"kind": f"chain_for_a_test:{name}", **options}


def moved(parts, fake_federation):
    loop = RoundLoop(parts, fake_federation(parts))
    start = loop.start()
    return loop.play(start)[0].vector.double() - start.vector.double()


@pytest.mark.usefixtures("plugins")
def test_rows_are_mixed_in_order_and_the_new_model_is_refined(make_parts, fake_federation):
    plain = moved(make_parts(), fake_federation)
    chain = strategy(before=[before("Halve"), before("Halve", by=4.0)], after=[before("Shift", by=3.0)])
    parts = make_parts(strategy=chain)
    assert isinstance(parts.plugins.strategy, Chain)
    torch.testing.assert_close(moved(parts, fake_federation), plain / 8 + 3.0, rtol=1e-5, atol=1e-6)


def test_a_rule_alone_is_no_chain(make_parts):
    assert not isinstance(make_parts(strategy=strategy(before=[])).plugins.strategy, Chain)


@pytest.mark.usefixtures("plugins")
def test_rows_of_another_shape_name_the_part(make_parts, fake_federation):
    parts = make_parts(strategy=strategy(before=["chain_for_a_test:Narrow"]))
    with pytest.raises(RoundError, match=r"Round 1: strategy\.before\[0\] made rows of shape \(4, 1\)"):
        moved(parts, fake_federation)


@pytest.mark.usefixtures("plugins")
@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"before": {"kind": "nnm"}}, r"strategy\.before: wanted a list of tables"),
        ({"before": [3]}, r"strategy\.before\[0\]: wanted a plugin's name or a table"),
        (
            {"after": ["chain_for_a_test:Shift", {"kind": "chain_for_a_test:Halve"}]},
            r"strategy\.after\[1\].*lacks",
        ),
        ({"before": [before("Halve", bye=1)]}, r"unknown key 'strategy\.before\[0\]\.bye'.*did you mean"),
        ({"before": [before("Needy")]}, r"Needy needs training examples of the server's own: set federation"),
    ],
)
def test_bad_chains_are_refused_before_any_round(make_parts, table, message):
    with pytest.raises(ConfigError, match=message):
        make_parts(strategy=strategy(**table))


@pytest.mark.usefixtures("plugins")
def test_the_state_of_a_chain_is_its_rule_s(make_parts):
    chain = make_parts(strategy=strategy(before=["chain_for_a_test:Halve"])).plugins.strategy
    remembering = replace(chain, rule=types.SimpleNamespace(init=lambda model: {"seen": model}))
    assert torch.equal(remembering.init(torch.ones(3))["seen"], torch.ones(3))


@dataclass(frozen=True, kw_only=True)
class Pairs(Halve):
    """Row i becomes the mean of rows i and i + 1."""

    def mix(self, updates, server):
        origins = (torch.eye(len(updates)) + torch.eye(len(updates)).roll(1, dims=1)) / 2
        return Mixture(origins @ updates, origins)


@dataclass(frozen=True, kw_only=True)
class First:
    def init(self, model):
        return {}

    def step(self, state, cohort, server):
        weights = torch.zeros(len(cohort.partitions)).index_fill(0, torch.tensor([0]), 1.0)
        return state, Decision(update=cohort.updates[0], weights=weights)


def test_weights_are_told_of_clients_not_of_mixed_rows():
    rows = torch.arange(8.0).view(4, 2)
    cohort = Cohort(
        round=1,
        partitions=(0, 1, 2, 3),
        updates=rows,
        examples=torch.ones(4, dtype=torch.int64),
        layout=Layout.of({"w": torch.zeros(2)}),
    )
    chain = Chain(before=(Pairs(), Pairs()), rule=First(), after=())
    _, decision = chain.step({}, cohort, Server(model=torch.zeros(2), rng=torch.Generator()))
    assert decision.weights.tolist() == [0.25, 0.5, 0.25, 0.0]
    torch.testing.assert_close(decision.weights.float() @ rows, decision.update)


@pytest.mark.parametrize(
    ("table", "differs"),
    [
        ({"kind": "fedavg", "after": [before("Shift")]}, False),
        ({"kind": "fedavgm", "momentum": 0.5, "learning_rate": 2.0}, False),
        ({"kind": "fedadam", "learning_rate": 0.1}, False),
        ({"kind": "fedadam", "learning_rate": 0.1, "rule": "median"}, True),
        ({"kind": "median", "after": [before("Shift")]}, True),
        ({"kind": "fedavg", "before": [{"kind": "nnm", "byzantine": 1}]}, True),
    ],
)
@pytest.mark.usefixtures("plugins")
def test_a_defence_is_told_apart_from_what_the_server_does_after_it(
    make_parts, fake_federation, table, differs
):
    attack = {"kind": "sign_flip", "malicious": 2, "participation": "forced"}
    parts = make_parts(strategy=table, attack=attack)
    loop = RoundLoop(parts, fake_federation(parts), None, Adversary.of(parts))
    state = loop.start()
    for _ in range(2):
        state, record = loop.play(state)
    assert (record["attack"]["differs_from_mean"] > LIVE) is differs


def test_trust_in_mixed_rows_is_told_of_the_clients():
    rule = types.SimpleNamespace(
        step=lambda state, cohort, server: (
            state,
            Decision(update=cohort.updates[0], weights=torch.ones(2), trust=torch.tensor([1.0, 0.0])),
        )
    )
    origins = torch.tensor([[0.75, 0.25], [0.0, 1.0]])
    mixer = types.SimpleNamespace(mix=lambda rows, server: Mixture(rows, origins))
    cohort = Cohort(
        round=1,
        partitions=(0, 1),
        updates=torch.ones(2, 1),
        examples=torch.ones(2),
        layout=Layout.of({"w": torch.zeros(1)}),
    )
    server = Server(model=torch.zeros(1), rng=torch.Generator())
    _, decision = Chain(before=(mixer,), rule=rule, after=()).step({}, cohort, server)
    assert decision.weights.tolist() == [0.75, 1.25]
    assert decision.trust.tolist() == [0.75, 0.25]


def test_the_layout_of_a_run_knows_what_is_not_trained(make_parts):
    data = {"kind": "digits"}
    parts = make_parts(data=data, model={"kind": "resnet18", "width": 4, "norm": "batch"})
    assert parts.layout.buffers
    assert all(name.endswith(("running_mean", "running_var")) for name in parts.layout.buffers)
    assert make_parts().layout.trained is None


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (
            {"kind": "krum", "byzantine": 1},
            "krum with byzantine=1 needs at least 5 clients in a round, found",
        ),
        (
            {"kind": "multi_krum", "byzantine": 0, "keep": 5},
            "multi_krum with keep=5 .* lower strategy.keep or",
        ),
        ({"kind": "trimmed_mean", "byzantine": 2}, "trimmed_mean with byzantine=2 needs at least 5 clients"),
        ({"kind": "rlr", "threshold": 5}, "rlr with threshold=5 .* lower strategy.threshold or raise"),
        ({"kind": "deepsight", "smallest_cluster": 4}, "deepsight with smallest_cluster=4 needs at least 5"),
        (
            {"kind": "fedavg", "before": [{"kind": "nnm", "byzantine": 2}]},
            "nnm .* byzantine of strategy.before",
        ),
        ({"kind": "fedavgm", "rule": {"kind": "krum", "byzantine": 1}}, "krum with byzantine=1 needs"),
        ({"kind": "fedadam", "learning_rate": 1.0, "rule": {"kind": "krum", "byzantine": 1}}, "krum with"),
    ],
)
def test_a_cohort_too_small_for_the_rule_is_refused_before_any_round(make_parts, table, message):
    with pytest.raises(ConfigError, match=f"^strategy: .*{message}") as refused:
        make_parts(strategy=table)
    assert "federation.clients_per_round = 4" in str(refused.value)
    federation = {"clients": 6, "clients_per_round": 5, "partition": "iid"}
    make_parts(strategy=table, federation=federation)
