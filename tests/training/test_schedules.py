import pytest
import torch

from fedsim.errors import ConfigError
from fedsim.training.schedules import Constant, Cosine, Exponential, StepDecay

ROUNDS = 12


@pytest.mark.parametrize(
    ("schedule", "make"),
    [
        (Constant(), lambda o: torch.optim.lr_scheduler.LambdaLR(o, lambda _: 1.0)),
        (Cosine(rounds=ROUNDS), lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, T_max=ROUNDS)),
        (
            Cosine(rounds=ROUNDS, final=0.25),
            lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, T_max=ROUNDS, eta_min=0.25),
        ),
        (
            StepDecay(every=5, decay=0.5),
            lambda o: torch.optim.lr_scheduler.StepLR(o, step_size=5, gamma=0.5),
        ),
        (Exponential(decay=0.9), lambda o: torch.optim.lr_scheduler.ExponentialLR(o, gamma=0.9)),
    ],
)
def test_factors_equal_torch_stepped_once_per_round(schedule, make):
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    reference = make(optimizer)
    for number in range(1, ROUNDS + 1):
        assert schedule.factor(number) == pytest.approx(optimizer.param_groups[0]["lr"], rel=1e-12)
        assert schedule.factor(number) > 0
        optimizer.step()
        reference.step()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Cosine(rounds=0), "rounds must be at least 1, found 0"),
        (lambda: Cosine(rounds=1, final=1.5), "final must be between 0 and 1, found 1.5"),
        (lambda: StepDecay(every=0), "every must be at least 1, found 0"),
        (lambda: StepDecay(every=1, decay=0.0), "decay must be above 0 and at most 1, found 0.0"),
        (lambda: Exponential(decay=1.1), "decay must be above 0 and at most 1, found 1.1"),
    ],
)
def test_illegal_values_are_named(make, message):
    with pytest.raises(ConfigError, match=message):
        make()
