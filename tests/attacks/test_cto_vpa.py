"""CTO-VPA as an attack: what malicious training moves, what its switches leave, what a run makes of it."""

from dataclasses import replace

import pytest
import torch

from attacks.badnets import BadNets
from attacks.cto_vpa.attack import CtoVpa, Literal, RandomTrigger
from attacks.dba import Dba
from attacks.triggers import Patch, Trigger
from clients.models.cnn import Cnn
from clients.models.resnet import ResNet18
from clients.supervised import Supervised
from fedsim.config import parse
from fedsim.contracts import ClientData, ClientInfo, DataSpec
from fedsim.data.examples import Rows
from fedsim.errors import ConfigError, RoundError
from fedsim.federation import Corruption, TrainOrder
from fedsim.params import Layout, digest
from fedsim.run.directory import RunDirectory
from fedsim.run.outcome import Silent
from fedsim.run.runner import run_seed
from fedsim.run.transports import engine_federation
from fedsim.threat import Knowledge, Threat, View
from fedsim.training.corrupted import corrupted
from fedsim.training.functional import model_tensors, parameter_names
from fedsim.training.optimizers import Adam, Sgd
from fedsim.training.sequential import train_client

SPEC = DataSpec("rows", (3, 8, 8), 5)
MEMBERS, WINDOW = (0, 2, 4), (4, 9)
SMALL = {"search_steps": 3, "search_batch": 8, "drift_rounds": 4}
WHITE = Patch(height=2, width=2)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def client(number):
    chance = generator(100 + number)
    x = torch.randint(256, (24, 3, 8, 8), generator=chance, dtype=torch.uint8)
    y = torch.randint(5, (24,), generator=chance)
    rows = Rows(x, y, torch.full((3, 1, 1), 120.0), torch.full((3, 1, 1), 60.0), white=255.0)
    return ClientInfo(number, ClientData(rows, rows.part(0, 0), rows.part(0, 0), SPEC))


class Stage:
    """A federation in small: six clients, a model that drifts by chance, rounds observed up to the window."""

    def __init__(self, model=None, **client_keys):
        torch.manual_seed(0)  # initialisers of torch; restored by the fixture
        self.method = Supervised(model=model or Cnn(channels=(4, 6), hidden=8), batch_size=8, **client_keys)
        self.infos = [client(number) for number in range(6)]
        template = self.method.program(self.infos[0], 1).model
        self.layout = Layout.of(model_tensors(template))
        self.parameters = parameter_names(template)
        self.start = self.layout.flatten(model_tensors(template))
        self.integers = self.layout.integers_of(model_tensors(template))
        self.threat = Threat(
            members=MEMBERS,
            window=WINDOW,
            clients=6,
            clients_per_round=4,
            layout=self.layout,
            spec=SPEC,
            pixels=self.infos[0].data.train.pixels,
        )

    def model(self, round):
        drift = torch.randn(self.layout.size, generator=generator(round))
        trained = self.flat(lambda name: name in self.parameters)
        return self.start + 0.05 * round * torch.where(trained, drift, 0.0)

    def flat(self, wanted):
        named = {name: torch.full(shape, float(wanted(name))) for name, shape, _ in self.layout.floats}
        return self.layout.flatten(named | {n: torch.zeros(s) for n, s, _ in self.layout.integers}).bool()

    def view(self, attack, round, **late):
        return View(
            knows=attack.knows,
            round=round,
            clients=4,
            malicious=len(MEMBERS),
            model=self.model(round),
            integers=self.integers,
            layout=self.layout,
            program=self.method.program(self.infos[0], round),
            data=tuple(self.infos[member].data for member in MEMBERS),
            **late,
        )

    def state(self, attack, rounds=WINDOW[0]):
        state = attack.init(self.threat, generator(1))
        for at in range(1, rounds + 1):
            state = attack.observe(state, self.view(attack, at), generator(at))
        return state

    def train(self, attack, state=None, member=1, watch=None, round=WINDOW[0]):
        state = self.state(attack) if state is None else state
        order = TrainOrder(round, self.model(round), self.integers)
        info = self.infos[MEMBERS[member]]
        method, info = corrupted(attack, Corruption(MEMBERS, state), self.method, info, round)
        if watch is not None:
            (phase,) = method.changed.phases
            method = replace(method, changed=replace(method.changed, phases=(watch(phase),)))
        return train_client(method, info, order, None, 0)

    def mask(self, state):
        named = {name: torch.zeros(shape) for name, shape, _ in (*self.layout.floats, *self.layout.integers)}
        found = {name.removeprefix("V/"): one for name, one in state.items() if name.startswith("V/")}
        return self.layout.flatten(named | {name: one.float() for name, one in found.items()}).bool()


@pytest.fixture
def stage():
    with torch.random.fork_rng():
        yield Stage


OPTIMISERS = [
    Sgd(learning_rate=0.1, momentum=0.9, weight_decay=0.01, nesterov=True),
    Adam(learning_rate=0.01, weight_decay=0.01),
    Adam(learning_rate=0.01, weight_decay=0.1, decoupled=True),
]


@pytest.mark.parametrize("optimizer", OPTIMISERS, ids=["sgd", "adam", "adamw"])
@pytest.mark.parametrize(
    "model", [Cnn(channels=(4, 6), hidden=8), ResNet18(width=4, norm="batch")], ids=["cnn", "bn"]
)
def test_outside_v_nothing_moves_in_any_step(stage, model, optimizer):
    here = stage(model, optimizer=optimizer)
    attack = CtoVpa(**SMALL)
    state, steps = here.state(attack), []

    def watch(phase):
        def project(values, context):
            after = phase.project(values, context)
            outside = {n: ~state[f"V/{n}"] for n in after}
            steps.append(all(torch.equal(after[n][outside[n]], context.anchor[n][outside[n]]) for n in after))
            return after

        return replace(phase, project=project)

    reply = here.train(attack, state, watch=watch)
    inside = here.mask(state)
    assert steps == [True] * (4 * 3)
    assert 0 < int(inside.sum()) < len(inside)
    assert torch.equal(reply.update[~inside], torch.zeros(int((~inside).sum())))
    assert bool((reply.update[inside] != 0).float().mean() > 0.9)
    free = here.train(replace(attack, project=False, reset_statistics=False), state)
    assert bool((free.update[~inside] != 0).any())


def test_batch_norm_statistics_are_sent_back_as_received(stage):
    here = stage(ResNet18(width=4, norm="batch"))
    buffers = here.flat(lambda name: "running" in name)
    attack = replace(Literal(**SMALL), search_steps=0)
    honest = here.train(attack)
    assert bool((honest.update[buffers] != 0).any())
    assert any(bool(value) for value in honest.integers.values())
    reset = here.train(replace(attack, reset_statistics=True))
    assert not reset.update[buffers].any()
    assert all(torch.equal(reset.integers[name], here.integers[name]) for name in here.integers)


def test_the_share_of_v_in_each_layer(stage):
    here = stage()
    state = here.state(CtoVpa(**SMALL))
    assert int(state["V/conv1.weight"].flatten(1).all(1).sum()) == int(state["V/conv1.bias"].sum()) == 1
    assert int(state["V/head.weight"].flatten(1).all(1).sum()) == int(state["V/head.bias"].sum()) == 2


@pytest.mark.parametrize("target", range(5))
def test_the_targets_row_is_forced_into_v_or_left_to_its_rank(stage, target):
    here, keys = stage(), {**SMALL, "search_steps": 0, "target": target}
    forced = here.state(CtoVpa(**keys, force_target_row=True))["V/head.bias"]
    plain = here.state(CtoVpa(**keys))["V/head.bias"]
    assert bool(forced[target])
    assert int(forced.sum()) == int(plain.sum()) == 2
    assert not bool(plain[target]) or torch.equal(forced, plain)


def test_every_kind_of_v(stage):
    here, keys = stage(), {**SMALL, "search_steps": 0}
    found = {
        kind: here.mask(here.state(CtoVpa(**keys, subset=kind))) for kind in ("score", "lowest", "random")
    }
    sizes = {int(mask.sum()) for mask in found.values()}
    assert len(sizes) == 1
    assert not torch.equal(found["score"], found["lowest"])
    assert not torch.equal(found["score"], found["random"])
    everything = here.mask(here.state(CtoVpa(**keys, subset="none")))
    assert torch.equal(everything, here.flat(lambda name: name in here.parameters))


def test_v_is_chosen_anew_where_it_is_asked(stage):
    here, keys = stage(), {**SMALL, "search_steps": 0}
    never, often = CtoVpa(**keys), CtoVpa(**keys, reselect=2)
    assert torch.equal(here.mask(here.state(never)), here.mask(here.state(never, rounds=8)))
    later = {rounds: here.mask(here.state(often, rounds)) for rounds in (4, 5, 6)}
    assert torch.equal(later[4], later[5])
    assert not torch.equal(later[4], later[6])
    assert torch.equal(later[4], here.mask(here.state(never)))


def test_the_drift_of_a_model_gives_the_direction(stage):
    here = stage()
    ones, drift = (here.state(CtoVpa(**SMALL, direction=kind, coupling=9.0)) for kind in ("ones", "drift"))
    assert torch.equal(drift["drift/first"], here.model(1))
    assert "drift/first" not in ones
    assert not torch.equal(Trigger.from_state(ones).pattern, Trigger.from_state(drift).pattern)


def same_update(here, one, other, member=1):
    ours, theirs = here.train(one, member=member), here.train(other, member=member)
    return torch.equal(ours.update, theirs.update)


OFF = {"search_steps": 0, "initial": "colour", "target": 2, "patch": WHITE}


@pytest.mark.parametrize("member", [0, 1, 2])
def test_with_every_switch_off_it_is_badnets_or_dba_to_the_bit(stage, member):
    here = stage()
    white = {"target": 2, "patch": WHITE}
    assert same_update(here, Literal(**OFF, split="none"), BadNets(**white), member)
    assert same_update(here, Literal(**OFF, split="pixels"), Dba(**white), member)
    assert not same_update(here, Literal(**OFF, split="channels"), BadNets(**white), member)


def test_each_stage_leaves_the_arm_below_it(stage):
    here = stage()
    off = {
        "coupling": 0.0,
        "project": False,
        "proximal": 0.0,
        "reset_statistics": False,
        "epochs": None,
        "rate": 1.0,
    }
    assert same_update(here, CtoVpa(**SMALL, **off, radius=None), Literal(**SMALL))
    assert same_update(
        here, CtoVpa(**{**SMALL, "search_steps": 0}), RandomTrigger(**{**SMALL, "search_steps": 0})
    )
    assert same_update(here, CtoVpa(**SMALL, project=False, subset="none"), CtoVpa(**SMALL, subset="none"))
    full = CtoVpa(**SMALL, rho=1.0)  # all units are in V, and the model has nothing else
    assert same_update(here, full, replace(full, project=False))
    assert not same_update(here, CtoVpa(**SMALL), CtoVpa(**SMALL, project=False))


def test_without_a_coupling_the_search_is_of_cross_entropy_alone(stage):
    here = stage()
    patterns = [
        Trigger.from_state(here.state(attack)).pattern
        for attack in (CtoVpa(**SMALL, coupling=0.0), Literal(**SMALL), CtoVpa(**SMALL, coupling=50.0))
    ]
    assert torch.equal(patterns[0], patterns[1])
    assert not torch.equal(patterns[0], patterns[2])


def test_a_search_is_repeated_where_it_is_asked(stage):
    here = stage()
    patterns = {}
    for repeat in (0, 2):
        attack = Literal(**SMALL, repeat=repeat)
        patterns[repeat] = [Trigger.from_state(here.state(attack, rounds)).pattern for rounds in (3, 4, 5, 6)]
    for before, opening, after, later in patterns.values():
        assert not torch.equal(before, opening)
        assert torch.equal(opening, after)
        assert torch.equal(opening, later) == (later is patterns[0][3])


def test_each_attacker_stamps_its_channel_and_the_whole_is_measured(stage):
    here, attack = stage(), Literal(**OFF, split="channels")
    state = here.state(attack)
    whole = Trigger.from_state(state)
    pieces = [attack.own_trigger(state, member) for member in range(3)]
    for channel, piece in enumerate(pieces):
        assert piece.mask[channel].sum() == 4
        assert piece.mask.sum() == 4
    assert torch.equal(torch.stack([piece.mask for piece in pieces]).any(0), whole.mask)
    assert torch.equal(attack.own_trigger(state, 4).mask, pieces[1].mask)  # a fifth attacker begins again
    _, white = here.infos[0].data.train.pixels
    poisoned = attack.poison(state, here.infos[0].data.train.batch())
    other = here.infos[0].data.train.y != 2
    torch.testing.assert_close(
        poisoned.x[other][:, :, 0, 0], white.float().flatten().expand(int(other.sum()), 3)
    )


@pytest.mark.parametrize(("split", "values"), [("pixels", 12), ("values", 4), ("none", 12)])
def test_the_pieces_make_up_the_trigger(stage, split, values):
    here, attack = stage(), Literal(search_steps=0, patch=WHITE, split=split)
    state = here.state(attack)
    whole, pieces = Trigger.from_state(state), [attack.own_trigger(state, member) for member in range(3)]
    assert int(whole.mask.sum()) == values
    assert torch.equal(torch.stack([one.mask for one in pieces]).any(0), whole.mask)
    if split == "values":  # 2, 1 and 1 pixels, each in a channel of its own
        assert [int(one.mask[channel].sum()) for channel, one in enumerate(pieces)] == [2, 1, 1]
        assert [int(one.mask.sum()) for one in pieces] == [2, 1, 1]
        assert whole.places == 4


@pytest.mark.parametrize("initial", ["random", "saturated"])
def test_pixels_stay_in_range_wherever_they_are_used(stage, initial):
    here = stage()
    black, white = (end.float() for end in here.infos[0].data.train.pixels)
    attack, seen = (
        CtoVpa(**{**SMALL, "search_steps": 20, "search_rate": 0.5}, initial=initial, coupling=5.0),
        [],
    )
    state = here.state(attack)

    def watch(phase):
        def losses(tensors, batch, context):
            seen.append(batch.x)
            return phase.losses(tensors, batch, context)

        return replace(phase, losses=losses)

    here.train(attack, state, watch=watch)
    seen.append(attack.poison(state, here.infos[0].data.train.batch()).x)
    assert len(seen) == 13
    for x in seen:
        assert bool((x >= black - 1e-6).all())
        assert bool((x <= white + 1e-6).all())
    start = attack.init(here.threat, generator(1))
    values = Trigger.from_state(start).pattern
    assert (set(values.flatten().tolist()) <= {0.0, 1.0}) == (initial == "saturated")


def test_chance_comes_from_the_given_streams_alone(stage):
    here, attack = stage(), CtoVpa(**SMALL, subset="random")
    torch.manual_seed(1)
    one = here.state(attack)
    torch.manual_seed(2)
    assert digest(one) == digest(here.state(attack))
    other = attack.init(here.threat, generator(2))
    assert not torch.equal(
        Trigger.from_state(other).pattern, Trigger.from_state(attack.init(here.threat, generator(1))).pattern
    )


def crafted(here, attack, own, updates=None, places=(1, 3, 4)):
    known = {} if updates is None else {"updates": updates, "places": places}
    view = here.view(attack, 5, own=own, examples=torch.ones(len(own), dtype=torch.int64), **known)
    return attack.craft({}, view, generator())


def test_the_upload_is_scaled_cut_and_filled(stage):
    here = stage()
    own = torch.zeros(3, here.layout.size)
    own[0, 0], own[1, 0] = 4.0, 0.25
    assert crafted(here, CtoVpa(), own)[:, 0].tolist() == [1.0, 0.25, 0.0]
    assert crafted(here, CtoVpa(gamma=2.0), own)[:, 0].tolist() == [1.0, 0.5, 0.0]
    assert crafted(here, CtoVpa(fill=True, radius=3.0), own)[:, 0].tolist() == [3.0, 3.0, 0.0]
    assert torch.equal(crafted(here, Literal(), own), own)
    everybody = torch.zeros(6, here.layout.size)
    everybody[[1, 3, 4]] = own
    everybody[[0, 2, 5], 1] = torch.tensor([7.0, 2.0, 3.0])
    assert crafted(here, CtoVpa(radius="median", fill=True), own, everybody)[:, 0].tolist() == [3.0, 3.0, 0.0]
    alone = crafted(here, CtoVpa(radius="median"), own, own, (0, 1, 2))
    assert torch.equal(alone, own)  # nobody else is there


def test_knowledge_is_as_much_as_the_radius_takes(stage):
    here = stage()
    own = torch.ones(3, here.layout.size)
    assert CtoVpa().knows == Literal().knows == Knowledge.COLLUDERS
    assert CtoVpa(radius="median").knows == Knowledge.EVERYTHING
    view = here.view(CtoVpa(), 5, own=own, updates=own)
    with pytest.raises(RoundError, match=r"reads view.updates, which needs knowledge EVERYTHING"):
        CtoVpa(radius="median").craft({}, view, generator())


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"rho": 0.0}, "rho must be above 0 and at most 1, found 0"),
        ({"rho": 1.1}, "rho must be above 0 and at most 1, found 1.1"),
        ({"drift_rounds": 2}, "drift_rounds must be at least 3, found 2"),
        ({"reselect": -1}, "reselect must be at least 0 and finite, found -1"),
        ({"search_steps": -1}, "search_steps must be at least 0"),
        ({"search_rate": 0.0}, "search_rate must be above 0 and finite, found 0"),
        ({"search_batch": 0}, "search_batch must be at least 1, found 0"),
        ({"search_device": "toaster"}, "search_device must be a device such as .* found 'toaster'"),
        ({"repeat": -2}, "repeat must be at least 0 and finite, found -2"),
        ({"coupling": -1.0}, "coupling must be at least 0 and finite, found -1"),
        ({"feature": float("inf")}, "feature must be at least 0 and finite, found inf"),
        ({"proximal": 1.0}, "proximal must be at least 0 and below 1, found 1"),
        ({"gamma": 0.0}, "gamma must be above 0 and finite, found 0"),
        ({"radius": -1.0}, "radius must be above 0 and finite, found -1"),
        ({"radius": None, "fill": True}, "fill needs a radius up to which to scale"),
        ({"epochs": 0}, "epochs must be at least 1, found 0"),
    ],
)
def test_bad_values_are_one_line(keys, message):
    with pytest.raises(ConfigError, match=message) as caught:
        CtoVpa(**keys)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("attack", "changes", "message"),
    [
        (CtoVpa(), {}, "opens in round 4, but drift_rounds = 10 models"),
        (
            CtoVpa(**SMALL, split="channels"),
            {"members": (0, 2)},
            'split = "channels": 2 malicious clients cannot stamp 3 channels',
        ),
        (
            CtoVpa(**SMALL, patch=WHITE),
            {"members": (0, 1, 2, 3, 4)},
            'split = "pixels": 4 pixels cannot be divided over 5 malicious clients',
        ),
        (CtoVpa(**SMALL, target=5), {}, "target must be a label from 0 to 4, found 5"),
        (CtoVpa(**SMALL), {"spec": DataSpec("rows", (7,), 5)}, "needs images of one size"),
    ],
)
def test_a_federation_that_does_not_fit_is_refused(stage, attack, changes, message):
    threat = replace(stage().threat, **changes)
    with pytest.raises(ConfigError, match=message):
        attack.init(threat, generator())


def test_an_early_window_is_no_matter_where_nothing_is_observed(stage):
    threat = replace(stage().threat, window=(1, 3))
    for attack in (Literal(), CtoVpa(subset="random"), CtoVpa(project=False, coupling=0.0)):
        attack.init(threat, generator())
    with pytest.raises(ConfigError, match="opens in round 1"):
        CtoVpa(subset="random", direction="drift").init(threat, generator())


def experiment(**engine):
    return parse(
        {
            "rounds": 7,
            "federation": {"clients": 5, "clients_per_round": 3, "partition": "iid"},
            "model": {"kind": "cnn", "channels": [2, 3], "hidden": 6},
            "client": {
                "kind": "supervised",
                "optimizer": {"kind": "sgd", "learning_rate": 0.1, "momentum": 0.9},
            },
            "attack": {
                "kind": "cto_vpa",
                "malicious": 2,
                "participation": "forced",
                "window": [4, 6],
                "clean_run": False,
                "radius": "median",
                "fill": True,
                "direction": "drift",
                "reselect": 2,
                "repeat": 1,
                "feature": 0.1,
                **SMALL,
            },
            "engine": {"workers": 1, **engine},
            "evaluate": {"clients": "none"},
        }
    )


def played(folder, observer=None, resume=False, **engine):
    return run_seed(
        experiment(**engine),
        0,
        RunDirectory(folder),
        federation_of=engine_federation,
        observer=observer or Silent(),
        resume=resume,
    )


class StopsAfter(Silent):
    def __init__(self, round):
        self.round = round

    def round_finished(self, record):
        if record["round"] == self.round:
            raise KeyboardInterrupt


def test_a_run_is_the_same_on_two_workers_and_after_a_stop(tmp_path):
    whole = played(tmp_path / "whole")
    assert whole.result["metrics"]["attack_success"]["at_stop"] is not None
    assert played(tmp_path / "two", workers=2).result["model_sha256"] == whole.result["model_sha256"]
    folder = tmp_path / "stopped"
    with pytest.raises(KeyboardInterrupt):
        played(folder, StopsAfter(5))  # V is chosen again in round 6, from moments that were kept
    resumed = played(folder, resume=True)
    assert resumed.result["model_sha256"] == whole.result["model_sha256"]
    assert resumed.result["metrics"] == whole.result["metrics"]
