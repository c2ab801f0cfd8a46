"""Descent of a trigger's pixel values on a loss, kept in range after every step."""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from attacks.triggers import Trigger
from fedsim.contracts import Batch, ClientData, Optimizer, Vector
from fedsim.errors import ConfigError, RoundError
from fedsim.threat import View
from fedsim.training.functional import model_tensors
from fedsim.training.optimizers import Adam

Search = Literal["adam", "sign"]


@dataclass(frozen=True, kw_only=True)
class SignSteps:
    """Steps of equal size against the gradient's sign; a value without gradient stays."""

    learning_rate: float

    def init(self, parameters: Vector) -> dict[str, Tensor]:
        """No state."""
        return {}

    def step(self, parameters: Vector, gradient: Vector, state: dict[str, Tensor]) -> None:
        """Update `parameters` in place."""
        parameters.sub_(gradient.sign(), alpha=self.learning_rate)


def due(since: int, every: int) -> bool:
    """As the window opens (`since` = 0), and every so many rounds after that; 0: never again."""
    return since == 0 or (every > 0 and since > 0 and since % every == 0)


def searcher(search: Search, rate: float) -> Optimizer:
    """The named optimiser of pixel values; `rate` is in units of brightness."""
    return Adam(learning_rate=rate) if search == "adam" else SignSteps(learning_rate=rate)


def improved(
    trigger: Trigger, loss: Callable[[Trigger], Tensor], steps: int, optimizer: Optimizer
) -> Trigger:
    """The trigger after some steps of descent on its pixel values.

    The loss sees patterns in [0, 1] only: they are clamped after every step, outside the graph, because a
    clamp inside it would stop the gradient of a value that has left the range. The best pattern is not
    looked for: the loss is that of a random batch.

    Args:
        trigger: where to start.
        loss: [], differentiable in the trigger's pattern.
        steps: 0 leaves the trigger as it is.
        optimizer: of the pattern [c, h, w].

    Raises:
        RoundError: the loss or its gradient is not finite.
    """
    pattern = trigger.pattern.detach().clamp(0, 1)
    state = optimizer.init(pattern)
    for step in range(1, steps + 1):
        leaf = pattern.clone().requires_grad_()
        found = loss(trigger.with_pattern(leaf))
        (gradient,) = torch.autograd.grad(found, leaf)
        if not (torch.isfinite(found) and torch.isfinite(gradient).all()):
            raise RoundError(f"The search for a trigger met a loss that is not finite in step {step}.")
        optimizer.step(pattern, torch.where(trigger.mask, gradient, 0.0), state)
        pattern.clamp_(0, 1)
    return trigger.with_pattern(pattern if steps else trigger.pattern)


def received_model(view: View, device: torch.device) -> tuple[nn.Module, dict[str, Tensor]]:
    """A template in evaluation mode, and the tensors of the round's global model.

    Raises:
        RoundError: see `require_whole`.
    """
    require_whole(view)
    model = copy.deepcopy(view.program.model).to(device).eval()
    received = view.layout.unflatten(view.model, view.integers)
    return model, {name: value.to(device) for name, value in received.items()}


def require_whole(view: View) -> None:
    """Refuse a model of which clients keep a part: the template's own values there are untrained.

    Raises:
        RoundError: naming the first such tensor.
    """
    kept = [name for name in model_tensors(view.program.model) if not view.program.is_shared(name)]
    if kept:
        raise RoundError(
            f"The attack needs the whole global model, but clients keep {kept[0]!r} to themselves: "
            "switch off what reads it (attack.steps, search_steps, force_target_row), or choose another "
            "client.kind."
        )


def check_device(key: str, name: str) -> None:
    """Refuse what names no device.

    Raises:
        ConfigError: naming `key`.
    """
    try:
        torch.device(name)
    except RuntimeError:
        raise ConfigError(f'{key} must be a device such as "cpu" or "cuda", found {name!r}.') from None


@dataclass(frozen=True)
class Examples:
    """The attack's own training images, pooled over its clients.

    Attributes:
        x: [n, c, h, w] as batches carry them.
        y: [n] int64.
    """

    x: Tensor
    y: Tensor

    @classmethod
    def of(cls, clients: Sequence[ClientData], device: torch.device, dtype: torch.dtype) -> "Examples":
        """The training splits, in the order given."""
        batches = [client.train.to(device, dtype).batch() for client in clients]
        return cls(torch.cat([one.x for one in batches]), torch.cat([one.y for one in batches]))

    def chosen(self, wanted: Tensor) -> "Examples":
        """Those where `wanted` [n] is True; all of them where none is."""
        kept = wanted if bool(wanted.any()) else torch.ones_like(wanted)
        return Examples(self.x[kept], self.y[kept])

    @property
    def batch(self) -> Batch:
        """All of them."""
        return Batch(self.x, self.y)

    def draw(self, count: int, rng: torch.Generator) -> Batch:
        """A random batch of `count`, with repetitions only where there are fewer examples."""
        most = len(self.y)
        if most >= count:
            index = torch.randperm(most, generator=rng)[:count]
        else:
            index = torch.randint(most, (count,), generator=rng)
        index = index.to(self.y.device)
        return Batch(self.x[index], self.y[index])
