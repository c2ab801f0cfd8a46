"""A rule that raises, or returns something else than it should, is named in one line."""

from dataclasses import dataclass

import pytest
import torch

from fedsim.contracts import Cohort, Decision, Server
from fedsim.errors import PluginError, RoundError
from fedsim.params import Layout
from fedsim.rng import stream
from fedsim.run.decision import apply, decide, first_state
from fedsim.run.round_loop import RoundLoop


def raise_it(error):
    raise error


@dataclass(frozen=True)
class Hostile:
    """Answers what a test wants."""

    start: object
    answer: object

    def init(self, model):
        return self.start(model)

    def step(self, state, cohort, server):
        return self.answer(state, cohort, server)


LAYOUT = Layout((("w", (3,), torch.float32),), ())


def cohort():
    return Cohort(
        round=1, partitions=(0, 1), updates=torch.ones(2, 3), examples=torch.tensor([5, 5]), layout=LAYOUT
    )


def server():
    return Server(model=torch.zeros(3), rng=stream(0, "rule"))


def mean(**changes):
    return Decision(**{"update": torch.zeros(3), **changes})


@pytest.mark.parametrize(
    ("start", "message"),
    [
        (lambda model: raise_it(KeyError("boom")), r"init raised KeyError: 'boom' \(test_decision.py, line"),
        (lambda model: raise_it(SystemExit(0)), "init raised SystemExit: 0"),
        (lambda model: None, r"init returned None, wanted named tensors \(\{\} where"),
        (lambda model: {"a": 3}, "init returned 'a': an object of type int, wanted a dense tensor"),
        (lambda model: {"a": torch.eye(2).to_sparse()}, "init returned 'a': a tensor.*wanted a dense"),
        (lambda model: {"a": torch.zeros(1, dtype=torch.complex64)}, "init returned 'a': .*of real numbers"),
    ],
)
def test_a_bad_first_state_is_bad_input(start, message):
    with pytest.raises(PluginError, match="strategy.kind: Hostile." + message):
        first_state(Hostile(start, None), torch.zeros(3))


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (lambda *_: raise_it(ValueError("boom")), r"step raised ValueError: boom \(test_decision.py, line"),
        (lambda *_: raise_it(SystemExit(0)), "step raised SystemExit: 0"),
        (lambda *_: None, r"step returned None, wanted \(state, Decision\)"),
        (lambda *_: ({}, None), "step returned an object of type tuple, wanted"),
        (lambda *_: (None, mean()), "step returned as state None, wanted named tensors"),
        (lambda *_: ({}, mean(update=[0.0])), "step returned as Decision.update an object of type list"),
        (lambda *_: ({}, mean(update=torch.zeros(3, dtype=torch.int64))), "step .*int64, wanted a floating"),
        (lambda *_: ({}, mean(weights=torch.zeros(7))), r"step .*\(7,\).*wanted a tensor of shape \(2,\)"),
        (lambda *_: ({}, mean(trust="yes")), "step .*trust an object of type str, wanted a tensor of shape"),
        (lambda *_: ({}, mean(trust=torch.zeros(7))), r"step .*trust .*\(7,\).*wanted .* \(2,\)"),
        (lambda *_: ({}, mean(aggregate=torch.zeros(7))), r"step .*aggregate .*\(7,\).*wanted .* \(3,\)"),
        (
            lambda *_: ({}, mean(weights=torch.tensor([torch.nan, 1]))),
            "step .*weights values that are not fin",
        ),
        (lambda *_: ({}, mean(weights=torch.tensor([-5.0, 1]))), "step .*weights values below 0"),
        (lambda state, cohort, server: cohort.updates.zero_(), r"step changed cohort.updates in place"),
        (
            lambda *_: ({}, mean(downlink={"x": 3})),
            "step .*downlink 'x': an object of type int",
        ),
    ],
)
def test_a_bad_decision_fails_the_round(answer, message):
    with pytest.raises(RoundError, match="Round 1: Hostile." + message):
        decide(Hostile(None, answer), {}, cohort(), server())


def test_global_generators_follow_the_seed():
    rule = Hostile(None, lambda *_: ({}, mean(update=torch.randn(3))))
    first, second = (decide(rule, {}, cohort(), server())[1].update for _ in range(2))
    assert torch.equal(first, second)


def test_a_rule_that_writes_into_what_it_was_given_changes_no_model(make_parts, fake_federation, monkeypatch):
    parts = make_parts()
    clean, _ = play(parts, fake_federation(parts))
    step = type(parts.plugins.strategy).step

    def careless(self, state, cohort, server):
        answer = step(self, state, cohort, server)
        server.model.fill_(1e3)
        return answer

    monkeypatch.setattr(type(parts.plugins.strategy), "step", careless)
    dirty, _ = play(parts, fake_federation(parts))
    assert torch.equal(clean.vector, dirty.vector)


def test_a_model_carries_no_gradient_s_graph_from_round_to_round(make_parts):
    layout = make_parts().layout
    update = torch.zeros(layout.size, requires_grad=True)
    assert not apply(torch.zeros(layout.size), Decision(update=update), cohort(), layout).requires_grad


def play(parts, federation):
    loop = RoundLoop(parts, federation)
    return loop.play(loop.start())
