"""Backdoors: what they stamp, and that each is its simpler relative where its switch is off."""

import pytest
import torch

from attacks.badnets import BadNets
from attacks.dba import Dba
from attacks.label_flip import LabelFlip
from attacks.model_replacement import ModelReplacement
from attacks.neurotoxin import Neurotoxin, by_name, least_moved
from attacks.triggers import Patch, Trigger
from fedsim.contracts import Batch, DataSpec
from fedsim.errors import ConfigError
from fedsim.params import Layout


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("dba", {"malicious": [4]}),
        ("model_replacement", {"scale": 1.0}),
        ("neurotoxin", {"keep_ratio": 1.0}),
    ],
)
def test_with_its_switch_off_it_is_badnets(played, kind, options):
    who = {"malicious": options.get("malicious", [1, 4])}
    simpler = played("badnets", "simpler", target=3, **who)
    switched_off = played(kind, "off", target=3, **options)
    assert switched_off.sha == simpler.sha
    assert switched_off.metrics == simpler.metrics
    on = played(kind, "on", target=3)
    assert on.sha != simpler.sha


@pytest.mark.parametrize("kind", ["badnets", "dba"])
def test_without_poison_everybody_is_honest(played, kind):
    assert played(kind, "off", poison_fraction=0.0).sha == played("honest", "honest").sha


def state_of(attack, threat):
    return attack.init(threat, torch.Generator())


def trained_on(attack, state, member, batch):
    """What a malicious client's step would be shown."""
    from clients.models.logistic import Logistic
    from clients.supervised import Supervised

    method = Supervised(model=Logistic())
    program = method.build_program(DataSpec("rows", tuple(batch.x.shape[1:]), 10), 1)
    changed, _ = attack.corrupt(state, member, program, None)
    return changed.phases[0].draw(batch, torch.Generator())[0]


def test_each_member_stamps_its_part_and_success_needs_the_whole(colours, make_threat):
    attack, threat = (
        Dba(poison_fraction=1.0, target=0, patch=Patch(height=3, width=5)),
        make_threat((1, 4, 6)),
    )
    state = state_of(attack, threat)
    batch = Batch(colours(8).batch().x, torch.arange(1, 9))
    whole = Trigger.from_state(state)
    union = torch.zeros_like(whole.mask)
    for member in range(3):
        seen = trained_on(attack, state, member, batch)
        touched = (seen.x != batch.x).any(dim=0)
        assert not (union & touched).any()
        assert int(touched[0].sum()) == 5
        union |= touched
    assert torch.equal(union, whole.mask)
    assert torch.equal(attack.poison(state, batch).x, whole.stamp(batch.x))


def test_a_trigger_smaller_than_its_members_cannot_be_divided(make_threat):
    with pytest.raises(ConfigError, match="a trigger of 1 pixels cannot be divided over 2 malicious clients"):
        state_of(Dba(patch=Patch(height=1, width=1)), make_threat())


def test_a_quarter_of_every_batch_is_poisoned_whatever_its_size(colours, make_threat):
    attack = BadNets(target=0)
    state = state_of(attack, make_threat())
    for size, count in ((32, 8), (7, 2), (2, 1), (1, 0)):
        batch = Batch(colours(size).batch().x, torch.full((size,), 5))
        assert int((trained_on(attack, state, 0, batch).y == 0).sum()) == count


@pytest.mark.parametrize(("scale", "gamma"), [(7.5, 7.5), ("replace", 3.0)])
def test_replacement_scales_the_update(crafted, scale, gamma):
    honest = torch.randn(6, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    found = crafted(ModelReplacement(scale=scale), honest)
    torch.testing.assert_close(found[[1, 4]], gamma * honest[[1, 4]], rtol=1e-15, atol=0)
    assert torch.equal(found[[0, 2, 3, 5]], honest[[0, 2, 3, 5]])


def test_where_honest_updates_cancel_the_mean_is_the_attackers_model(crafted):
    theirs = torch.tensor([1.0, -2.0, 3.0], dtype=torch.float64)
    honest = torch.zeros(6, 3, dtype=torch.float64)
    honest[[1, 4]] = theirs
    found = crafted(ModelReplacement(), honest).mean(dim=0)
    torch.testing.assert_close(found, theirs, rtol=1e-15, atol=0)


def test_a_bounded_replacement_is_as_long_as_its_bound(crafted):
    found = crafted(ModelReplacement(norm_bound=0.5), torch.ones(6, 4, dtype=torch.float64))
    assert found[[1, 4]].norm(dim=1).tolist() == pytest.approx([0.5, 0.5], rel=1e-15)


@pytest.mark.parametrize(("ratio", "kept"), [(0.95, 19), (0.5, 10), (1.0, 20), (0.01, 0)])
def test_the_coordinates_that_moved_most_are_dropped(ratio, kept):
    change = torch.tensor([(-1.0) ** i * ((7 * i) % 20) for i in range(20)])
    keep = least_moved(change, ratio)
    ranked = sorted(range(20), key=lambda i: abs(float(change[i])))
    assert {i for i in range(20) if keep[i]} == set(ranked[:kept])


def test_where_nothing_moved_everything_is_kept():
    assert least_moved(torch.zeros(5), 0.2).all()


def test_masks_by_name_are_pieces_of_the_flat_one():
    tensors = {"a": torch.zeros(2, 3), "count": torch.tensor(1), "b": torch.zeros(4)}
    keep = torch.tensor([True, False, True, False, True, False, True, True, False, False])
    found = by_name(keep, Layout.of(tensors))
    assert list(found) == ["a", "b"]
    assert found["a"].tolist() == [[True, False, True], [False, True, False]]
    assert found["b"].tolist() == [True, True, False, False]


def test_neurotoxin_leaves_alone_what_the_last_round_moved(adversary_of):
    """Watch two models, train a malicious client, and look at the forbidden coordinates."""
    from fedsim.contracts import ClientInfo
    from fedsim.federation import TrainOrder
    from fedsim.training.corrupted import corrupted
    from fedsim.training.sequential import train_client

    adversary = adversary_of("neurotoxin", keep_ratio=0.8, norm_bound=0.05)
    layout, parts = adversary.threat.layout, adversary.parts
    first = layout.flatten(parts.initial)
    second = first + 0.1 * torch.randn(len(first), generator=torch.Generator().manual_seed(2))
    state = adversary.init()
    for round_, model in ((1, first), (2, second)):
        state = adversary.observe(state, round_, model, {})
    honest = ClientInfo(4, parts.data.clients[4])
    method, client = corrupted(
        adversary.attack, adversary.corruption(state, 3), parts.plugins.method, honest, 3
    )
    update = train_client(method, client, TrainOrder(3, second, {}), None, 0).update
    moved = (second - first).abs()
    forbidden = moved > moved.sort().values[round(0.8 * len(moved)) - 1]
    assert int(forbidden.sum()) == len(moved) - round(0.8 * len(moved))
    assert not update[forbidden].any()
    assert update[~forbidden].any()
    assert float(update.norm()) <= 0.05 * (1 + 1e-4)  # float32


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, [9, 8, 7, 6, 5, 4, 3, 2, 1, 0]),
        ({"mapping": "next"}, [1, 2, 3, 4, 5, 6, 7, 8, 9, 0]),
        ({"mapping": "one", "source": 5, "target": 3}, [0, 1, 2, 3, 4, 3, 6, 7, 8, 9]),
        ({"mapping": "one", "source": 0, "target": 9}, [9, 1, 2, 3, 4, 5, 6, 7, 8, 9]),
    ],
)
def test_labels_are_flipped_in_training_and_in_what_counts(colours, make_threat, options, expected):
    attack = LabelFlip(**options)
    state = state_of(attack, make_threat())
    batch = Batch(colours(10).batch().x, torch.arange(10))
    for found in (attack.poison(state, batch), trained_on(attack, state, 0, batch)):
        assert found.y.tolist() == expected
        assert torch.equal(found.x, batch.x)


def test_labels_of_nodes_are_flipped_too(make_threat):
    attack = LabelFlip()
    state = state_of(attack, make_threat(spec=DataSpec("nodes", (4,), 3), pixels=None))
    mask = torch.tensor([True, False, True])
    batch = Batch(torch.zeros(3, 4), torch.tensor([0, 1, 2]), mask, torch.zeros(2, 0, dtype=torch.int64))
    found = attack.poison(state, batch)
    assert found.y.tolist() == [2, 1, 0]
    assert found.mask is mask


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"mapping": "one"}, 'belong to mapping = "one", which needs both; found source = None'),
        ({"mapping": "one", "source": 2}, "found source = 2, target = None"),
        ({"source": 2, "target": 3}, "with mapping = 'reverse'"),
        ({"mapping": "one", "source": 2, "target": 2}, "source and target must differ, found 2 twice"),
    ],
)
def test_mappings_that_contradict_themselves(options, words):
    with pytest.raises(ConfigError, match=words):
        LabelFlip(**options)


def test_labels_that_the_data_lack(make_threat):
    attack = LabelFlip(mapping="one", source=11, target=1)
    with pytest.raises(ConfigError, match=r"attack\.source must be a label from 0 to 9, found 11"):
        state_of(attack, make_threat())
    with pytest.raises(ConfigError, match="label_flip needs the same classes on all clients"):
        state_of(LabelFlip(), make_threat(spec=None))


@pytest.mark.parametrize(
    ("attack", "options", "words"),
    [
        (BadNets, {"poison_fraction": 1.5}, "poison_fraction must lie from 0 to 1, found 1.5"),
        (BadNets, {"rate": 0.0}, "rate must be above 0 and finite, found 0"),
        (BadNets, {"epochs": 0}, "epochs must be at least 1, found 0"),
        (BadNets, {"target": -1}, "target must be a label, at least 0, found -1"),
        (ModelReplacement, {"scale": 0.0}, "scale must be above 0 and finite, found 0"),
        (ModelReplacement, {"norm_bound": 0.0}, "norm_bound must be above 0 and finite, found 0"),
        (Neurotoxin, {"keep_ratio": 0.0}, "keep_ratio must be above 0 and at most 1, found 0"),
        (Neurotoxin, {"keep_ratio": 1.01}, "keep_ratio must be above 0 and at most 1, found 1.01"),
        (Neurotoxin, {"norm_bound": -1.0}, "norm_bound must be above 0 and finite, found -1"),
    ],
)
def test_bad_values(attack, options, words):
    with pytest.raises(ConfigError, match=words):
        attack(**options)


def test_what_is_not_trained_has_no_rank():
    change, trained = torch.tensor([5.0, 0.0, 1.0, 0.0, 3.0]), torch.tensor([True, False, True, False, True])
    assert least_moved(change, 1 / 3, trained).tolist() == [False, True, True, True, False]
    assert least_moved(change, 2 / 3, trained).tolist() == [False, True, True, True, True]
    assert least_moved(torch.tensor([0.0, 9.0]), 0.5, torch.tensor([True, False])).all()
