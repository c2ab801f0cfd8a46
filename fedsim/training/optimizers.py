"""Stochastic gradient descent and Adam, in place on flat vectors.

Elementwise, so one description runs on a client's vector [d] and on stacked clients [c, d]. The update
rules and their order of operations are those of `torch.optim` (dampening 0, amsgrad off).

Kingma and Ba, "Adam", ICLR 2015; Loshchilov and Hutter, "Decoupled Weight Decay Regularization", ICLR 2019.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from fedsim.contracts import Vector
from fedsim.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Sgd:
    """Gradient descent with momentum and L2 weight decay.

    Attributes:
        learning_rate: above 0.
        momentum: in [0, 1).
        weight_decay: L2 coefficient, added to the gradient; at least 0.
        nesterov: look ahead along the momentum; needs momentum above 0.
    """

    learning_rate: float
    momentum: float = 0.0
    weight_decay: float = 0.0
    nesterov: bool = False

    def __post_init__(self) -> None:
        """Refuse values outside the ranges above."""
        _above_zero("learning_rate", self.learning_rate)
        _fraction("momentum", self.momentum)
        _at_least_zero("weight_decay", self.weight_decay)
        if self.nesterov and not self.momentum:
            raise ConfigError("nesterov needs momentum above 0, found 0.0.")

    def init(self, parameters: Vector) -> dict[str, Tensor]:
        """A zero momentum buffer shaped like `parameters`, or nothing without momentum."""
        return {"momentum": torch.zeros_like(parameters)} if self.momentum else {}

    def step(self, parameters: Vector, gradient: Vector, state: dict[str, Tensor]) -> None:
        """Update `parameters` and `state` in place; `gradient` is only read."""
        if self.weight_decay:
            gradient = gradient.add(parameters, alpha=self.weight_decay)
        if self.momentum:
            velocity = state["momentum"].mul_(self.momentum).add_(gradient)
            gradient = gradient.add(velocity, alpha=self.momentum) if self.nesterov else velocity
        parameters.add_(gradient, alpha=-self.learning_rate)


@dataclass(frozen=True, kw_only=True)
class Adam:
    """Adam; with `decoupled`, AdamW.

    Attributes:
        learning_rate: above 0.
        betas: decay of the first and the second moment, each in [0, 1).
        epsilon: added to the root of the second moment; above 0.
        weight_decay: at least 0; L2, or a decay of the parameters themselves if `decoupled`.
        decoupled: AdamW's form of weight decay.
    """

    learning_rate: float
    betas: tuple[float, float] = (0.9, 0.999)
    epsilon: float = 1e-8
    weight_decay: float = 0.0
    decoupled: bool = False

    def __post_init__(self) -> None:
        """Refuse values outside the ranges above."""
        _above_zero("learning_rate", self.learning_rate)
        _above_zero("epsilon", self.epsilon)
        _at_least_zero("weight_decay", self.weight_decay)
        if len(self.betas) != 2:
            raise ConfigError(f"betas must be two numbers, found {len(self.betas)}.")
        for beta in self.betas:
            _fraction("betas", beta)

    def init(self, parameters: Vector) -> dict[str, Tensor]:
        """Zero moments shaped like `parameters`, and the step count, int64 [] on the CPU."""
        return {
            "first": torch.zeros_like(parameters),
            "second": torch.zeros_like(parameters),
            "step": torch.zeros((), dtype=torch.int64),
        }

    def step(self, parameters: Vector, gradient: Vector, state: dict[str, Tensor]) -> None:
        """Update `parameters` and `state` in place; `gradient` is only read."""
        if self.weight_decay and self.decoupled:
            parameters.mul_(1 - self.learning_rate * self.weight_decay)
        elif self.weight_decay:
            gradient = gradient.add(parameters, alpha=self.weight_decay)
        beta1, beta2 = self.betas
        unbiased1, unbiased2 = _corrections(state["step"].add_(1), beta1, beta2, parameters)
        first = state["first"].lerp_(gradient, 1 - beta1)
        second = state["second"].mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        root = second.sqrt().div_(unbiased2).add_(self.epsilon)
        if isinstance(unbiased1, float):
            parameters.addcdiv_(first, root, value=-self.learning_rate / unbiased1)
        else:
            parameters.addcmul_(first / root, 1 / unbiased1, value=-self.learning_rate)


def _corrections(
    step: Tensor, beta1: float, beta2: float, like: Tensor
) -> tuple[float, float] | tuple[Tensor, Tensor]:
    """1 - beta1**step and the root of 1 - beta2**step: numbers, or [c, 1] where each client counts apart."""
    if step.dim() == 0:
        count = int(step)
        return 1 - beta1**count, math.sqrt(1 - beta2**count)
    counts = step.double()
    return (1 - beta1**counts).to(like), (1 - beta2**counts).sqrt().to(like)


def _above_zero(key: str, value: float) -> None:
    if not (value > 0 and math.isfinite(value)):
        raise ConfigError(f"{key} must be above 0 and finite, found {value}.")


def _at_least_zero(key: str, value: float) -> None:
    if not (value >= 0 and math.isfinite(value)):
        raise ConfigError(f"{key} must be at least 0 and finite, found {value}.")


def _fraction(key: str, value: float) -> None:
    if not 0 <= value < 1:
        raise ConfigError(f"{key} must be at least 0 and below 1, found {value}.")
