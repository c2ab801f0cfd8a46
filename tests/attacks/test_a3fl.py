"""A3FL: the copy that unlearns, the weight of its loss, and what is left with each switch off."""

import math
from dataclasses import replace

import pytest
import torch
from torch.nn import functional

from attacks.a3fl import A3fl, AdversarialLoss, cross_entropy, similarity
from attacks.badnets import BadNets
from attacks.trigger_search import Examples
from attacks.triggers import Patch, Trigger
from clients.models.cnn import Cnn
from clients.supervised import Supervised
from fedsim.config import parse
from fedsim.contracts import Batch, ClientData, DataSpec
from fedsim.data.examples import Rows
from fedsim.errors import ConfigError, RoundError
from fedsim.params import Layout, digest
from fedsim.run.directory import RunDirectory
from fedsim.run.outcome import Silent
from fedsim.run.runner import run_seed
from fedsim.run.transports import engine_federation
from fedsim.threat import Knowledge, Threat, View
from fedsim.training.functional import FunctionalModel, model_tensors, parameter_names

SPEC = DataSpec("rows", (3, 8, 8), 5)
SMALL = {"steps": 4, "search_batch": 8, "unlearn_every": 2, "unlearn_steps": 3}
PATCH = Patch(height=3, width=3, colour=(0.5,))


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.fixture
def model():
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return Cnn(channels=(4, 6), hidden=8).build(SPEC).double().eval()


def client(number):
    x = torch.randint(256, (20, 3, 8, 8), generator=generator(number), dtype=torch.uint8)
    y = torch.randint(5, (20,), generator=generator(50 + number))
    rows = Rows(x, y, torch.full((3, 1, 1), 100.0), torch.full((3, 1, 1), 50.0), white=255.0)
    return ClientData(rows, rows.part(0, 0), rows.part(0, 0), SPEC)


def threat(layout, **changes):
    found = Threat(
        members=(0, 1),
        window=(2, 4),
        clients=4,
        clients_per_round=3,
        layout=layout,
        spec=SPEC,
        pixels=client(0).train.pixels,
    )
    return replace(found, **changes)


def pool():
    return Examples.of([client(0), client(1)], torch.device("cpu"), torch.float64)


def trigger(model):
    return PATCH.trigger(threat(Layout.of(model_tensors(model))))


def adversarial(model, seed=3, **keys):
    attack = A3fl(**{**SMALL, "patch": PATCH, "target": 1, **keys})
    return AdversarialLoss(attack, model, model_tensors(model), pool(), generator(seed))


def observed(model, attack, rounds, knows=None):
    layout = Layout.of(model_tensors(model))
    state = attack.init(threat(layout), generator())
    program = Supervised(model=_Built(model)).build_program(SPEC, 1)
    vector = layout.flatten(model_tensors(model))
    states = []
    for at in range(1, rounds + 1):
        view = View(
            knows=attack.knows if knows is None else knows,
            round=at,
            clients=3,
            malicious=2,
            model=vector + 0.01 * at,
            integers={},
            layout=layout,
            program=program,
            data=None if knows is not None else (client(0), client(1)),
        )
        state = attack.observe(state, view, generator(at))
        states.append(state)
    return states


class _Built:
    def __init__(self, model):
        self.model = model

    def build(self, spec):
        return self.model


def test_the_copy_descends_on_triggered_images_with_their_true_labels(model):
    """Against plain torch: the same batches, the same steps, no code of the attack but the stamp."""
    loss = adversarial(model, unlearn_steps=3, unlearn_rate=0.1)
    found = loss.unlearned(trigger(model))
    chance, own = generator(3), {n: v.clone().requires_grad_() for n, v in model_tensors(model).items()}
    for _ in range(3):
        batch = loss.pool.draw(8, chance)
        stamped = torch.where(trigger(model).mask, (127.5 - 100) / 50, batch.x)
        logits = torch.func.functional_call(model, own, (Batch(stamped, batch.y),))
        functional.cross_entropy(logits, batch.y).backward()
        with torch.no_grad():
            own = {name: (value - 0.1 * value.grad).requires_grad_() for name, value in own.items()}
    for name in parameter_names(model):
        torch.testing.assert_close(found[name], own[name].detach(), rtol=1e-10, atol=1e-12)
        assert torch.equal(model_tensors(model)[name], loss.tensors[name])


def test_unlearning_raises_the_triggers_loss(model):
    loss = adversarial(model, unlearn_steps=40, unlearn_rate=0.2)
    copy, own = loss.unlearned(trigger(model)), loss.pool.batch
    stamped = Batch(trigger(model).stamp(own.x), own.y)
    assert float(cross_entropy(model, copy, stamped).detach()) < float(
        cross_entropy(model, loss.tensors, stamped).detach()
    )


def test_the_loss_weighs_the_copy_by_their_similarity(model):
    loss = adversarial(model, balance=0.5)
    found = float(loss(trigger(model)).detach())
    again = adversarial(model, balance=0.5)
    copy = again.unlearned(trigger(model))
    drawn = again.pool.draw(8, again.rng)
    other = drawn.y != 1
    x = torch.where(other.view(-1, 1, 1, 1), trigger(model).stamp(drawn.x), drawn.x)
    wanted, flat = torch.ones_like(drawn.y), lambda one: torch.cat([one[n].flatten() for n in sorted(one)])
    cosine = flat(copy) @ flat(loss.tensors) / (flat(copy).norm() * flat(loss.tensors).norm())
    ce = [
        functional.cross_entropy(FunctionalModel(model)(one, Batch(x, wanted))[0], wanted)
        for one in (loss.tensors, copy)
    ]
    assert math.isclose(found, float((ce[0] + 0.5 * cosine * ce[1]).detach()), rel_tol=1e-9)
    assert math.isclose(similarity(copy, loss.tensors), float(cosine), rel_tol=1e-12)


def test_a_fresh_copy_unlearns_every_so_often(model, monkeypatch):
    asked = []
    plain = AdversarialLoss.unlearned
    monkeypatch.setattr(AdversarialLoss, "unlearned", lambda s, t: asked.append(s.steps) or plain(s, t))
    loss = adversarial(model, unlearn_every=3)
    for _ in range(7):
        loss(trigger(model))
    assert asked == [0, 3, 6]


def test_the_gradient_reaches_the_pattern_through_both_models(model):
    start, step = trigger(model), 1e-6

    def at(pattern):
        return adversarial(model, balance=2.0, unlearn_steps=0)(start.with_pattern(pattern))

    leaf = start.pattern.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(at(leaf), leaf)
    for place in start.mask.nonzero().tolist()[:6]:
        moved = torch.zeros_like(start.pattern)
        moved[tuple(place)] = step
        measured = float((at(start.pattern + moved) - at(start.pattern - moved)).detach()) / (2 * step)
        assert math.isclose(float(gradient[tuple(place)]), measured, rel_tol=1e-5, abs_tol=1e-8)


def test_without_steps_it_is_badnets(model):
    attack, plain = A3fl(steps=0, patch=PATCH, target=1), BadNets(patch=PATCH, target=1)
    before, *_, after = observed(model, attack, 4)
    assert digest(before) == digest(after)
    assert torch.equal(
        Trigger.from_state(after).pattern,
        Trigger.from_state(plain.init(threat(Layout.of(model_tensors(model))), generator())).pattern,
    )
    program = Supervised(model=_Built(model)).build_program(SPEC, 1)
    draws = [one.corrupt(after, 0, program, client(0))[0].phases[0].draw for one in (attack, plain)]
    batch = Batch(client(0).train.batch().x, client(0).train.y)
    ours, theirs = (draw(batch, generator())[0] for draw in draws)
    assert torch.equal(ours.x, theirs.x)
    assert torch.equal(ours.y, theirs.y)


def test_without_a_balance_nothing_is_unlearned(model, monkeypatch):
    monkeypatch.setattr(AdversarialLoss, "unlearned", lambda *_: pytest.fail("asked"))
    loss = adversarial(model, balance=0.0)
    loss(trigger(model))


def test_the_trigger_moves_by_sign_steps_in_the_window_and_stays_in_range(model):
    states = observed(model, A3fl(**SMALL, patch=PATCH, target=1, step_size=0.3), 4)
    patterns = [Trigger.from_state(state).pattern for state in states]
    mask = Trigger.from_state(states[0]).mask
    assert torch.equal(patterns[0], torch.full_like(patterns[0], 0.5))
    assert not torch.equal(patterns[0], patterns[1])
    assert not torch.equal(patterns[1], patterns[2])
    for one in patterns:
        assert float(one.min()) >= 0.0
        assert float(one.max()) <= 1.0
        assert torch.equal(one[~mask], patterns[0][~mask])


def test_a_single_search_where_it_is_asked(model):
    states = observed(model, A3fl(**SMALL, patch=PATCH, target=1, repeat=0), 4)
    assert torch.equal(Trigger.from_state(states[1]).pattern, Trigger.from_state(states[3]).pattern)


def test_it_needs_the_colluders_data(model):
    attack = A3fl(**SMALL, patch=PATCH)
    assert attack.knows == Knowledge.COLLUDERS
    with pytest.raises(RoundError, match="needs knowledge COLLUDERS, but it declares OWN_DATA"):
        observed(model, attack, 2, knows=Knowledge.OWN_DATA)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"steps": -1}, "steps must be at least 0, found -1"),
        ({"step_size": 0.0}, "step_size must be above 0 and finite, found 0"),
        ({"balance": -0.1}, "balance must be at least 0 and finite, found -0.1"),
        ({"unlearn_every": 0}, "unlearn_every must be at least 1, found 0"),
        ({"unlearn_steps": -1}, "unlearn_steps must be at least 0, found -1"),
        ({"unlearn_rate": float("nan")}, "unlearn_rate must be above 0 and finite, found nan"),
        ({"search_batch": 0}, "search_batch must be at least 1, found 0"),
        ({"search_device": "toaster"}, "search_device must be a device such as .* found 'toaster'"),
        ({"repeat": -1}, "repeat must be at least 0, found -1"),
    ],
)
def test_bad_values_are_one_line(keys, message):
    with pytest.raises(ConfigError, match=message) as caught:
        A3fl(**keys)
    assert "\n" not in str(caught.value)


class StopsAfter(Silent):
    def round_finished(self, record):
        if record["round"] == 3:
            raise KeyboardInterrupt


def played(folder, observer=None, resume=False, **engine):
    raw = {
        "rounds": 4,
        "federation": {"clients": 4, "clients_per_round": 3, "partition": "iid"},
        "model": {"kind": "cnn", "channels": [2, 3], "hidden": 6},
        "attack": {
            "kind": "a3fl",
            "malicious": 2,
            "participation": "forced",
            "window": [2, 4],
            "clean_run": False,
            **SMALL,
        },
        "engine": {"workers": 1, **engine},
        "evaluate": {"clients": "none"},
    }
    return run_seed(
        parse(raw),
        0,
        RunDirectory(folder),
        federation_of=engine_federation,
        observer=observer or Silent(),
        resume=resume,
    )


def test_a_run_is_the_same_on_two_workers_and_after_a_stop(tmp_path):
    whole = played(tmp_path / "whole")
    assert played(tmp_path / "two", workers=2).result["model_sha256"] == whole.result["model_sha256"]
    with pytest.raises(KeyboardInterrupt):
        played(tmp_path / "stopped", StopsAfter())
    resumed = played(tmp_path / "stopped", resume=True)
    assert resumed.result["model_sha256"] == whole.result["model_sha256"]
    assert resumed.result["metrics"] == whole.result["metrics"]
