"""Stage B: the trigger's loss, coupled to the directions that aggregation leaves alone.

    L(delta) = E CE(f(x + delta), y_target) - a cos(-P_V grad_theta CE(f(x + delta), y_target), u_V)
             + b |phi(x + delta) - mu_target|^2

-P_V grad_theta CE is what a first step of training on triggered examples does to V; the cosine asks that it
point along u_V. Its gradient with respect to delta takes a second backward pass. phi is the input of the
model's last linear layer, mu_target its mean over clean examples of the target class; both are in the
units of that layer, and the squared distance is averaged over the batch.

The model is called in evaluation mode, as it is when success is measured.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedsim.contracts import Batch, Tensors
from fedsim.training.functional import FunctionalModel

FLAT = 1e-12
"""Added to the gradient's length: where cross-entropy has saturated the cosine is 0, not 0 / 0."""

Call = Callable[[Tensors, Batch], Tensor]


@dataclass(frozen=True)
class Aim:
    """Where the coupling pulls.

    Attributes:
        direction: by name, u_V: zero outside V, of length 1 over all tensors together; tensors without a
            coordinate in V are left out.
        mask: by name, the coordinates of V, bool.
    """

    direction: Tensors
    mask: Tensors


def cosine_along(loss: Tensor, tensors: Tensors, aim: Aim) -> Tensor:
    """[]: cos(-P_V grad loss, u_V), differentiable in whatever the loss depends on.

    Args:
        loss: [], of leaves in `tensors` that record gradients.
        tensors: by name, at least those of the aim.
        aim: V and u_V.
    """
    names = list(aim.direction)
    gradients = torch.autograd.grad(loss, [tensors[name] for name in names], create_graph=True)
    inner, square = loss.new_zeros(()), loss.new_zeros(())
    for name, gradient in zip(names, gradients, strict=True):
        inside = torch.where(aim.mask[name], gradient, 0.0)
        inner = inner - (inside * aim.direction[name]).sum()
        square = square + inside.square().sum()
    length = torch.where(square > 0, square, 1.0).sqrt()  # the root has no gradient at 0
    return inner / (torch.where(square > 0, length, 0.0) + FLAT)


@dataclass(frozen=True)
class TriggerLoss:
    """L(delta) on one batch of a frozen model.

    Attributes:
        model: a template in evaluation mode.
        tensors: of the global model.
        target: the label that the attack wants.
        coupling: a, at least 0; 0: no second backward pass.
        aim: V and u_V; of no use where a = 0.
        feature: b, at least 0.
        centre: [f], mu_target; of no use where b = 0.
    """

    model: nn.Module
    tensors: Tensors
    target: int
    coupling: float = 0.0
    aim: Aim | None = None
    feature: float = 0.0
    centre: Tensor | None = None

    def __call__(self, triggered: Batch) -> Tensor:
        """[], differentiable in the batch's inputs; its labels are not read."""
        call = FunctionalModel(self.model)
        coupled = self.coupling > 0 and self.aim is not None
        tensors = dict(self.tensors)
        if coupled and self.aim is not None:
            tensors |= {name: tensors[name].detach().requires_grad_() for name in self.aim.direction}
        with recorded_features(self.model) as features:
            logits, _ = call(tensors, triggered)
        wanted = torch.full((len(logits),), self.target, device=logits.device)
        loss = plain = functional.cross_entropy(logits, wanted)
        if coupled and self.aim is not None:
            loss = loss - self.coupling * cosine_along(plain, tensors, self.aim)
        if self.feature > 0 and self.centre is not None:
            loss = loss + self.feature * (features[0] - self.centre).square().sum(dim=1).mean()
        return loss


@contextmanager
def recorded_features(model: nn.Module) -> Iterator[list[Tensor]]:
    """The inputs [b, f] of the model's last linear layer, one per call inside the scope; none without one."""
    found: list[Tensor] = []
    linear = [module for module in model.modules() if isinstance(module, nn.Linear)]
    if not linear:
        yield found
        return

    def keep(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        found.append(inputs[0])

    handle = linear[-1].register_forward_pre_hook(keep)
    try:
        yield found
    finally:
        handle.remove()
