import pytest
import torch
from torch import nn

from fedsim.contracts import Batch
from fedsim.training.functional import FunctionalModel, model_tensors, parameter_names

BATCH = Batch(
    torch.randn(6, 4, generator=torch.Generator().manual_seed(0)), torch.zeros(6, dtype=torch.int64)
)


class Tied(nn.Module):
    """One weight used in two places, a buffer of constants, and one that is not saved."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.second.weight = self.first.weight
        self.register_buffer("shift", torch.ones(4))
        self.register_buffer("scratch", torch.full((4,), 2.0), persistent=False)

    def forward(self, batch, noise=None):
        self.shift = self.shift + 1  # replaced, not written in place
        return self.second(self.first(batch.x) + self.shift) * self.scratch


def test_equals_torchs_functional_call(tiny):
    model = tiny.TwoLayer(4, 5, norm=True, dropout=0.0)
    given = {
        name: torch.rand_like(value) if value.is_floating_point() else value.clone()
        for name, value in model_tensors(model).items()
    }
    reference = {name: value.clone() for name, value in given.items()}
    expected = torch.func.functional_call(model, reference, (BATCH,))
    found, buffers = FunctionalModel(model)(given, BATCH)
    assert torch.equal(found, expected)
    assert set(buffers) == {"norm.running_mean", "norm.running_var", "norm.num_batches_tracked"}
    for name, value in buffers.items():
        assert torch.equal(value, reference[name])  # functional_call writes into what it is given


def test_neither_the_template_nor_the_given_tensors_change(tiny):
    model = tiny.TwoLayer(4, 5, norm=True, dropout=0.0)
    own = {name: (value, value.clone()) for name, value in model.state_dict(keep_vars=True).items()}
    given = {name: value.clone() + 1 for name, value in model_tensors(model).items()}
    copies = {name: value.clone() for name, value in given.items()}
    FunctionalModel(model)(given, BATCH)
    for name, value in model.state_dict(keep_vars=True).items():
        assert value is own[name][0]
        assert torch.equal(value, own[name][1])
        assert torch.equal(given[name], copies[name])


def test_the_template_survives_an_error(tiny):
    model = tiny.TwoLayer(4, 5, norm=True, dropout=0.0)
    before = dict(model.named_parameters())
    wrong = {name: torch.zeros(1) for name in model_tensors(model)}
    with pytest.raises(RuntimeError):
        FunctionalModel(model)(wrong, BATCH)
    assert all(model.get_parameter(name) is value for name, value in before.items())


def test_tied_weights_have_one_name_and_one_gradient():
    model = Tied()
    assert list(model_tensors(model)) == ["shift", "first.weight", "first.bias", "second.bias"]
    assert parameter_names(model) == {"first.weight", "first.bias", "second.bias"}
    given = {name: value.clone() for name, value in model_tensors(model).items()}
    weight = given["first.weight"].requires_grad_()
    logits, buffers = FunctionalModel(model)(given, BATCH)
    logits.sum().backward()
    model(BATCH).sum().backward()
    torch.testing.assert_close(weight.grad, model.first.weight.grad)
    assert torch.equal(buffers["shift"], torch.full((4,), 2.0))


def test_a_prefix_names_another_copy_of_the_model(tiny):
    model = tiny.TwoLayer(4, 5, norm=True, dropout=0.0)
    plain = {name: value.clone() for name, value in model_tensors(model).items()}
    other = {f"own/{name}": value * 2 for name, value in plain.items()}
    logits, buffers = FunctionalModel(model, "own/")(plain | other, BATCH)
    expected, _ = FunctionalModel(model)({name.removeprefix("own/"): v for name, v in other.items()}, BATCH)
    assert torch.equal(logits, expected)
    assert set(buffers) == {name for name in other if "running" in name or "tracked" in name}


def test_a_tensor_that_is_not_given_has_the_templates_value(tiny):
    model = tiny.TwoLayer(4, 5, norm=False, dropout=0.0)
    logits, _ = FunctionalModel(model)({}, BATCH)
    assert torch.equal(logits, model(BATCH))
