import sys
import types
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import pytest
import torch

from fedsim.config import parse
from fedsim.contracts import Cohort
from fedsim.errors import ConfigError, RoundError
from fedsim.params import Layout
from fedsim.run.adversary import Adversary, query
from fedsim.run.assembly import assemble
from fedsim.run.round_loop import RoundLoop
from fedsim.run.server_side import ServerSide
from fedsim.threat import Knowledge, Passive, Threat

LAYOUT = Layout.of({"w": torch.zeros(2)})


def cohort(round_=2):
    return Cohort(
        round=round_,
        partitions=(0, 3, 4, 7),
        updates=torch.arange(8.0).view(4, 2),
        examples=torch.ones(4, dtype=torch.int64),
        layout=LAYOUT,
    )


@dataclass(frozen=True, kw_only=True)
class Flip(Passive):
    knows: ClassVar[Knowledge] = Knowledge.COLLUDERS

    def craft(self, state, view, rng):
        return -view.own * view.malicious


class Alone(Flip):
    knows: ClassVar[Knowledge] = Knowledge.OWN_DATA


class Spying(Flip):
    def craft(self, state, view, rng):
        return view.updates[: view.malicious]


class Knowing(Flip):
    knows: ClassVar[Knowledge] = Knowledge.EVERYTHING

    def craft(self, state, view, rng):
        return view.rule(view.updates).expand(view.malicious, -1)


class Broken(Flip):
    def craft(self, state, view, rng):
        return view.own[:, :1]


@dataclass(frozen=True, kw_only=True)
class Watcher(Passive):
    """Remembers the models that it saw, and sends what it remembers."""

    knows: ClassVar[Knowledge] = Knowledge.COLLUDERS

    def init(self, threat, rng):
        return {"seen": torch.zeros(threat.layout.size), "rounds": torch.zeros(())}

    def observe(self, state, view, rng):
        assert len(view.data) == view.malicious == 2
        return {"seen": state["seen"] + view.model, "rounds": state["rounds"] + 1}

    def craft(self, state, view, rng):
        return state["rounds"].expand_as(view.own)


def adversary(attack, forced=False):
    threat = Threat(members=(3, 7), window=(2, 4), clients=8, clients_per_round=4, layout=LAYOUT, spec=None)
    data = types.SimpleNamespace(clients=[None] * 8)
    parts = types.SimpleNamespace(seed=0, data=data, program_of=lambda *_: None)
    return Adversary(attack, threat, forced, parts)


class Finding(Flip):
    """Looks for its own rows among all."""

    knows: ClassVar[Knowledge] = Knowledge.EVERYTHING

    def craft(self, state, view, rng):
        assert torch.equal(view.updates[list(view.places)], view.own)
        return view.own + torch.tensor(view.places)[:, None]


def rewritten(attack, round_=2):
    def mean(rows):
        return rows.mean(dim=0)

    return adversary(attack).rewrite({}, cohort(round_), torch.zeros(2), {}, mean).updates


def test_full_knowledge_tells_which_rows_are_its_own():
    found = rewritten(Finding()) - cohort().updates
    assert found.tolist() == [[0, 0], [1, 1], [0, 0], [3, 3]]


def test_colluders_are_rewritten_together_and_the_honest_never():
    honest = cohort().updates
    found = rewritten(Flip())
    assert torch.equal(found[[0, 2]], honest[[0, 2]])
    assert torch.equal(found[[1, 3]], -2 * honest[[1, 3]])


def test_without_collusion_each_sees_itself_alone():
    assert torch.equal(rewritten(Alone())[[1, 3]], -cohort().updates[[1, 3]])


@pytest.mark.parametrize("round_", [1, 5])
def test_outside_the_window_nothing_happens(round_):
    assert torch.equal(rewritten(Flip(), round_), cohort().updates)


def test_more_than_was_granted_is_not_shown():
    with pytest.raises(RoundError, match=r"view.updates, which needs knowledge EVERYTHING"):
        rewritten(Spying())


def test_the_rule_can_be_asked_where_everything_is_known():
    assert torch.equal(rewritten(Knowing())[1], cohort().updates.mean(dim=0))


def test_rows_of_another_shape():
    with pytest.raises(
        RoundError, match=r"Broken made rows of shape \(2, 1\), wanted finite rows of shape \(2, 2\)"
    ):
        rewritten(Broken())


def test_forced_members_join_in_the_window_alone():
    assert [adversary(Flip(), forced=True).forced_members(r) for r in (1, 2, 4, 5)] == [
        (),
        (3, 7),
        (3, 7),
        (),
    ]
    assert adversary(Flip()).forced_members(2) == ()


def test_watching_ends_with_the_window_and_its_memory_is_explicit():
    watcher = adversary(Watcher())
    state = watcher.init()
    for round_ in range(1, 7):
        state = watcher.observe(state, round_, torch.ones(2) * round_, {})
    assert state["rounds"] == 4
    assert torch.equal(state["seen"], torch.full((2,), 1.0 + 2 + 3 + 4))


def test_asking_the_rule_leaves_no_trace(make_parts):
    parts = make_parts()
    server = partial(ServerSide(parts).of, 1, torch.zeros(2), {})
    ask = query(parts.plugins.strategy, {}, cohort(), server)
    assert torch.equal(ask(cohort().updates), cohort().updates.mean(dim=0))
    assert torch.equal(ask(cohort().updates), ask(cohort().updates))


def with_attack(make_parts, name, **table):
    attack = {"kind": f"attack_for_a_test:{name}", "malicious": [1, 5], **table}
    return make_parts(attack=attack)


@pytest.fixture
def module(monkeypatch):
    found = types.ModuleType("attack_for_a_test")
    found.Flip = Flip
    monkeypatch.setitem(sys.modules, "attack_for_a_test", found)


@pytest.mark.usefixtures("module")
def test_in_the_loop_forced_clients_take_part_and_send_crafted_rows(make_parts, fake_federation):
    parts = with_attack(make_parts, "Flip", participation="forced", window=[1, 1])
    federation = fake_federation(parts)
    loop = RoundLoop(parts, federation, adversary=Adversary.of(parts))
    state, _ = loop.play(loop.start())
    asked = federation.asked[0]
    assert {1, 5} <= set(asked)
    sent = {p: (p + 1) * (-2 if p in (1, 5) else 1) for p in asked}
    mean = sum((p + 1) * sent[p] for p in asked) / sum(p + 1 for p in asked)
    torch.testing.assert_close(
        state.vector - loop.start().vector, torch.full_like(state.vector, mean), rtol=1e-5, atol=1e-6
    )


def test_a_number_of_malicious_clients_is_drawn_by_seed(make_parts):
    base = make_parts().experiment
    raw = base.model_dump(mode="json", exclude={"name"})
    drawn = []
    for seed in range(5):
        experiment = parse(raw | {"attack": {"kind": "x", "malicious": 2}})
        plain = assemble(base, seed)
        drawn.append(type(plain)(experiment, seed, plain.plugins, plain.data).malicious)
    assert all(len(set(one)) == 2 and list(one) == sorted(one) for one in drawn)
    assert len(set(drawn)) > 1


def test_what_an_attack_refuses_is_known_before_any_round(make_parts):
    with pytest.raises(ConfigError, match=r"attack.target must be a label from 0 to 9, found 99"):
        Adversary.of(make_parts(attack={"kind": "badnets", "target": 99}))
