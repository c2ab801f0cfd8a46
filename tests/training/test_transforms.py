import pytest
import torch

from fedsim.contracts import Context
from fedsim.errors import ConfigError
from fedsim.training.transforms import chain, clip_by_norm

CONTEXT = Context({}, {}, {}, 1)


def test_long_gradients_are_scaled_and_short_ones_kept():
    clip = clip_by_norm(5.0)
    torch.testing.assert_close(clip(torch.tensor([6.0, 8.0]), CONTEXT), torch.tensor([3.0, 4.0]))
    short = torch.tensor([0.3, -0.4])
    assert torch.equal(clip(short, CONTEXT), short)
    assert torch.equal(clip(torch.zeros(3), CONTEXT), torch.zeros(3))


def test_equals_torch_up_to_its_epsilon():
    gradient = torch.randn(50, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    parameter = torch.zeros(50, dtype=torch.float64, requires_grad=True)
    parameter.grad = gradient.clone()
    torch.nn.utils.clip_grad_norm_([parameter], 1.0)
    torch.testing.assert_close(clip_by_norm(1.0)(gradient, CONTEXT), parameter.grad, rtol=1e-6, atol=0)


def test_each_client_of_a_stack_is_clipped_alone():
    stack = torch.tensor([[6.0, 8.0], [0.3, 0.4]])
    found = clip_by_norm(5.0)(stack, CONTEXT)
    torch.testing.assert_close(found, torch.tensor([[3.0, 4.0], [0.3, 0.4]]))


def test_a_gradient_that_is_not_finite_stays_visible():
    assert clip_by_norm(1.0)(torch.tensor([1.0, torch.nan]), CONTEXT).isnan().all()


def test_chain_keeps_the_order():
    double = chain(lambda g, c: g * 2, lambda g, c: g + 1)
    assert torch.equal(double(torch.tensor([3.0]), CONTEXT), torch.tensor([7.0]))
    assert torch.equal(chain()(torch.tensor([3.0]), CONTEXT), torch.tensor([3.0]))


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
def test_illegal_norms_are_named(value):
    with pytest.raises(ConfigError, match="clip_norm must be above 0 and finite, found"):
        clip_by_norm(value)
