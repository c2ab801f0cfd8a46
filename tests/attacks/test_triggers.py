"""Triggers are defined in units of brightness and stamped on whatever scale a batch has."""

from dataclasses import replace

import pytest
import torch

from attacks.triggers import Patch, Trigger, poison_batch, poisoned_count
from fedsim.contracts import Batch, DataSpec
from fedsim.data.digits import Digits
from fedsim.errors import ConfigError
from fedsim.run.adversary import Adversary


def unstandardised(rows, x):
    """Back to what the files hold, 0 to 255."""
    return x * rows.std + rows.mean


def test_a_stamped_pixel_has_the_colour_before_standardising(colours, make_threat):
    rows = colours()
    trigger = Patch(row=-2, column=1, height=2, width=3, colour=(0.0, 0.5, 1.0)).trigger(make_threat())
    x = rows.batch().x
    before = x.clone()
    found = unstandardised(rows, trigger.stamp(x))
    expected = rows.x.double().clone()
    for channel, value in enumerate((0.0, 127.5, 255.0)):
        expected[:, channel, 6:8, 1:4] = value
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)
    assert torch.equal(x, before)


def test_digits_are_white_at_16():
    (pool,) = Digits().load()
    black, white = pool.rows.pixels
    assert black.tolist() == [[[0.0]]]
    assert white.tolist() == [[[1.0]]]
    assert pool.rows.batch().x.max() == 1.0


def test_rows_that_are_no_images_have_no_pixels(colours):
    rows = colours()
    assert type(rows)(rows.x, rows.y).pixels is None
    assert type(rows)(rows.x[:, 0, 0].float(), rows.y, white=1.0).pixels is None


def test_values_out_of_range_are_clamped_where_used_and_gradients_pass_inside(colours, make_threat):
    rows = colours()
    mask = torch.zeros(3, 8, 8, dtype=torch.bool)
    mask[:, 0, :3] = True
    pattern = torch.full((3, 8, 8), 0.5, dtype=torch.float64)
    pattern[:, 0, 0], pattern[:, 0, 1] = 7.0, -7.0
    pattern.requires_grad_()
    found = Trigger.of(make_threat(), mask, pattern).stamp(rows.batch().x)
    seen = unstandardised(rows, found)[:, :, 0, :3]
    torch.testing.assert_close(
        seen, torch.tensor([255.0, 0.0, 127.5]).double().expand_as(seen), rtol=0, atol=1e-10
    )
    found.sum().backward()
    assert (pattern.grad != 0).sum() == 3  # the one pixel in range, in each channel


@pytest.mark.parametrize("parts", [1, 2, 3, 5, 16])
def test_the_parts_are_disjoint_and_their_union_is_the_whole(make_threat, parts):
    whole = Patch().trigger(make_threat())
    masks = torch.stack([whole.part(number, parts).mask for number in range(parts)])
    assert torch.equal(masks.sum(dim=0), whole.mask.long())
    sizes = [whole.part(number, parts).places for number in range(parts)]
    assert sum(sizes) == whole.places == 16
    assert max(sizes) - min(sizes) <= 1


def test_four_members_share_dba_s_bars(make_threat):
    threat = make_threat(spec=DataSpec("rows", (3, 32, 32), 10))
    whole = Patch(height=5, width=15, gap=(3, 3)).trigger(threat)
    bars = [whole.part(number, 4).mask[0].nonzero().tolist() for number in range(4)]
    assert bars[0] == [[0, column] for column in range(6)]
    assert bars[1] == [[0, column] for column in range(9, 15)]
    assert bars[2] == [[4, column] for column in range(6)]
    assert bars[3] == [[4, column] for column in range(9, 15)]


def test_a_trigger_survives_an_attack_s_state(make_threat):
    trigger = Patch(colour=(0.2, 0.4, 0.6)).trigger(make_threat())
    back = Trigger.from_state(trigger.state())
    for name in ("mask", "pattern", "black", "white"):
        assert torch.equal(getattr(back, name), getattr(trigger, name))


@pytest.mark.parametrize(
    ("fraction", "size", "count"),
    [(0.25, 32, 8), (0.25, 1, 0), (0.25, 2, 1), (0.25, 5, 1), (0.5, 3, 2), (1.0, 7, 7), (0.0, 9, 0)],
)
def test_the_count_is_rounded_to_the_nearest_halves_up(fraction, size, count):
    assert poisoned_count(fraction, size) == count


def test_the_first_of_other_classes_are_poisoned_and_the_rest_left_alone(colours, make_threat):
    trigger = Patch().trigger(make_threat())
    x = colours(8).batch().x
    y = torch.tensor([3, 1, 3, 2, 0, 3, 1, 2])
    found = poison_batch(Batch(x, y), trigger, 3, 0.5)
    assert found.y.tolist() == [3, 3, 3, 3, 3, 3, 3, 2]
    touched = (found.x != x).flatten(1).any(dim=1)
    assert touched.tolist() == [False, True, False, True, True, False, True, False]
    assert torch.equal(found.x[touched], trigger.stamp(x)[touched])
    assert y.tolist() == [3, 1, 3, 2, 0, 3, 1, 2]


def test_where_few_are_of_another_class_all_of_them_are_poisoned(colours, make_threat):
    x, y = colours(4).batch().x, torch.tensor([3, 3, 3, 1])
    found = poison_batch(Batch(x, y), Patch().trigger(make_threat()), 3, 1.0)
    assert (found.x != x).flatten(1).any(dim=1).tolist() == [False, False, False, True]
    assert found.y.tolist() == [3, 3, 3, 3]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"height": 0}, "height must be at least 1, found 0"),
        ({"width": -3}, "width must be at least 1, found -3"),
        ({"colour": (1.1,)}, r"colour must be values from 0 to 1, one per channel, found \(1.1,\)"),
        ({"colour": ()}, "colour must be values from 0 to 1"),
        ({"gap": (3, 0)}, "gap must leave equal halves of height = 4, found 3"),
        ({"gap": (0, 4)}, "gap must leave equal halves of width = 4, found 4"),
    ],
)
def test_bad_patches(options, words):
    with pytest.raises(ConfigError, match=words):
        Patch(**options)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"row": 5}, "attack.patch.row = 5 with 4 pixels does not fit into images of 8 pixels"),
        ({"column": -3}, "attack.patch.column = -3 with 4 pixels does not fit"),
        ({"colour": (1.0, 0.0)}, "has 2 values, but the images have 3 channels: give 1 value or 3"),
    ],
)
def test_patches_that_do_not_fit_the_images(make_threat, options, words):
    with pytest.raises(ConfigError, match=words):
        Patch(**options).trigger(make_threat())


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"spec": None}, "clients' inputs differ"),
        ({"spec": DataSpec("rows", (14,), 2)}, r"the data are rows with inputs of shape \(14,\)"),
        ({"spec": DataSpec("nodes", (1433,), 7)}, "the data are nodes"),
        ({"spec": DataSpec("graphs", (7,), 2)}, "the data are graphs"),
        ({"pixels": None}, "have no scale of pixels"),
    ],
)
def test_a_pixel_trigger_on_other_data_is_one_clear_line(make_threat, changes, words):
    with pytest.raises(ConfigError, match=words) as refused:
        Patch().trigger(make_threat(**changes))
    assert str(refused.value).startswith("attack.kind: a pixel trigger needs images")
    assert "\n" not in str(refused.value)


def test_an_attack_is_told_black_and_white(adversary_of):
    black, white = adversary_of("badnets").threat.pixels
    assert black.flatten().tolist() == [0.0]
    assert white.flatten().tolist() == [1.0]


def test_clients_on_different_scales_have_no_common_one(adversary_of):
    adversary = adversary_of("label_flip")  # which needs none
    clients = list(adversary.parts.data.clients)
    darker = replace(clients[2].train, white=8.0)
    for odd in (darker, replace(darker, white=None)):
        clients[2] = replace(clients[2], train=odd)
        data = replace(adversary.parts.data, clients=tuple(clients))
        parts = replace(adversary.parts, data=data)
        assert Adversary.of(parts).threat.pixels is None
