import pytest
import torch

from clients.models.cnn import Cnn
from clients.models.dropout import draw_masks, drop
from clients.models.mlp import Mlp
from fedsim.contracts import Batch, DataSpec


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_a_mask_keeps_the_expectation_and_drops_its_share(rate: float) -> None:
    mask = draw_masks({"a": 500}, rate, torch.zeros(400, 1), generator())["a"]
    assert mask.unique().tolist() == pytest.approx([0.0, 1 / (1 - rate)], rel=1e-6)
    deviation = (rate / (1 - rate) / mask.numel()) ** 0.5  # of the mean of 200,000 entries
    assert abs(mask.double().mean().item() - 1) < 4 * deviation


def test_masks_depend_on_the_generator_alone() -> None:
    like, widths = torch.zeros(5, 2), {"a": 20, "b": 30}
    torch.manual_seed(1)
    first = draw_masks(widths, 0.5, like, generator())
    torch.manual_seed(2)
    second = draw_masks(widths, 0.5, like, generator())
    other = draw_masks(widths, 0.5, like, generator(1))
    assert all(torch.equal(first[name], second[name]) for name in widths)
    assert not torch.equal(first["a"], other["a"])
    assert {name: tuple(mask.shape) for name, mask in first.items()} == {"a": (5, 20), "b": (5, 30)}


def test_both_precisions_drop_the_same_units() -> None:
    single = draw_masks({"a": 50}, 0.3, torch.zeros(9, 1), generator())["a"]
    double = draw_masks({"a": 50}, 0.3, torch.zeros(9, 1).double(), generator())["a"]
    assert (single.dtype, double.dtype) == (torch.float32, torch.float64)
    assert torch.equal(single != 0, double != 0)
    assert double.max().item() == 1 / 0.7


def test_rate_zero_draws_nothing_and_leaves_the_generator_alone() -> None:
    rng = generator()
    assert draw_masks({"a": 5}, 0.0, torch.zeros(2, 1), rng) == {}
    assert torch.equal(rng.get_state(), generator().get_state())


def test_a_name_that_was_not_drawn_is_not_dropped() -> None:
    hidden = torch.ones(2, 3)
    assert drop(hidden, None, "a") is hidden
    assert drop(hidden, {}, "a") is hidden
    assert drop(hidden, {"augmentation": torch.zeros(2)}, "a") is hidden


@pytest.mark.parametrize("table", [Mlp(hidden=(6, 4), dropout=0.5), Cnn(hidden=6, dropout=0.5)])
def test_a_model_repeats_its_outputs_with_the_same_noise_and_without(table: Mlp | Cnn) -> None:
    spec = DataSpec("rows", (1, 8, 8), 3)
    model = table.build(spec)
    batch = Batch(torch.randn(7, 1, 8, 8, generator=generator()), torch.zeros(7, dtype=torch.int64))
    noise = model.draw(batch, generator())
    assert torch.equal(model(batch, noise), model(batch, noise))
    assert torch.equal(model(batch), model(batch, {}))
    assert not torch.equal(model(batch), model(batch, noise))


def test_every_hidden_layer_of_an_mlp_is_masked() -> None:
    model = Mlp(hidden=(6, 4), dropout=0.5).build(DataSpec("rows", (5,), 3))
    batch = Batch(torch.randn(7, 5, generator=generator()), torch.zeros(7, dtype=torch.int64))
    noise = model.draw(batch, generator())
    assert [tuple(mask.shape) for mask in noise.values()] == [(7, 6), (7, 4)]
    silenced = noise | {"dropout.1": torch.zeros(7, 4)}
    torch.testing.assert_close(model(batch, silenced), model.head.bias.expand(7, 3))
