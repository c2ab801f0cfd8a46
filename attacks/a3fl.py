"""A3FL: a trigger optimised against the global model and against a copy of it that has unlearned the trigger.

Zhang, Jia, Chen, Lin and Wu, "A3FL: Adversarially Adaptive Backdoor Attacks to Federated Learning", NeurIPS
2023, section 4:

    theta' = argmin_theta E CE(f(x + delta; theta), y)       the copy unlearns: true labels
    delta  = argmin_delta E CE(f(x + delta; theta_t), y_target) + lambda E CE(f(x + delta; theta'), y_target)
    lambda = lambda_0 cos(theta', theta_t)

by sign steps, clamped to [0, 1] after each. Then malicious clients train as in BadNets, all with the whole
trigger. Usual values: a patch of 5 x 5 pixels, 200 steps of 0.01, lambda_0 = 0.01.

With `steps = 0` it is BadNets; with `balance = 0` nothing is unlearned, and the trigger is tuned on the
global model alone. Departures: the steps are on random batches of the colluders' pooled images, where the
paper's are on each malicious client's own; the copy is started afresh from theta_t every `unlearn_every`
steps and takes `unlearn_steps` steps of plain gradient descent; models are called in evaluation mode, so
that BatchNorm's statistics stay the received ones.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from attacks.badnets import BadNets
from attacks.programs import check_above_zero
from attacks.trigger_search import Examples, check_device, due, improved, received_model, searcher
from attacks.triggers import Patch, Trigger, poison_batch
from fedsim.contracts import Batch, Tensors
from fedsim.errors import ConfigError
from fedsim.threat import Knowledge, Threat, View
from fedsim.training.functional import FunctionalModel, parameter_names

START = "window/start"


@dataclass(frozen=True, kw_only=True)
class A3fl(BadNets):
    """A backdoor whose trigger follows the global model; see `BadNets` for the other attributes.

    Attributes:
        patch: the trigger's place, and the pixel values that the first search starts from.
        steps: of a search; 0: none.
        step_size: of a sign step, in units of brightness.
        balance: lambda_0, weight of the copy that unlearned.
        unlearn_every: steps after which a fresh copy unlearns the trigger.
        unlearn_steps: of the copy.
        unlearn_rate: its learning rate.
        search_batch: images per step.
        search_device: where the search computes, such as "cuda".
        repeat: rounds between searches in the window; 0: once, as the window opens.
    """

    knows: ClassVar[Knowledge] = Knowledge.COLLUDERS

    patch: Patch = Patch(height=5, width=5, colour=(0.5,))  # noqa: RUF009 - frozen
    steps: int = 200
    step_size: float = 0.01
    balance: float = 0.01
    unlearn_every: int = 20
    unlearn_steps: int = 10
    unlearn_rate: float = 0.01
    search_batch: int = 64
    search_device: str = "cpu"
    repeat: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        for key in ("step_size", "unlearn_rate"):
            check_above_zero(key, getattr(self, key))
        for key in ("steps", "unlearn_steps", "repeat"):
            if getattr(self, key) < 0:
                raise ConfigError(f"{key} must be at least 0, found {getattr(self, key)}.")
        for key in ("unlearn_every", "search_batch"):
            if getattr(self, key) < 1:
                raise ConfigError(f"{key} must be at least 1, found {getattr(self, key)}.")
        check_device("search_device", self.search_device)
        if not 0 <= self.balance < float("inf"):
            raise ConfigError(f"balance must be at least 0 and finite, found {self.balance}.")

    def init(self, threat: Threat, rng: torch.Generator) -> Tensors:
        """The first trigger, and when the window opens; errors are those of `BadNets.init`."""
        return {**super().init(threat, rng), START: torch.tensor(threat.window[0])}

    def observe(self, state: Tensors, view: View, rng: torch.Generator) -> Tensors:
        """In the window search on, from the last trigger."""
        if not self.steps or not due(view.round - int(state[START]), self.repeat):
            return state
        device = torch.device(self.search_device)
        pool = Examples.of(view.data or (), device, view.layout.dtype)
        model, tensors = received_model(view, device)
        loss = AdversarialLoss(self, model, tensors, pool, rng)
        found = improved(Trigger.from_state(state), loss, self.steps, searcher("sign", self.step_size))
        return {**state, **found.state()}


@dataclass
class AdversarialLoss:
    """The trigger's loss in step after step, with a copy that unlearns anew every so often.

    Attributes:
        attack: its numbers.
        model: a template in evaluation mode.
        tensors: of the global model.
        pool: the colluders' images.
        rng: draws the batches.
        steps: taken.
    """

    attack: A3fl
    model: nn.Module
    tensors: Tensors
    pool: Examples
    rng: torch.Generator
    steps: int = 0
    _copy: Tensors | None = None
    _weight: float = 0.0

    def __call__(self, trigger: Trigger) -> Tensor:
        """[]: on a fresh batch."""
        if self.attack.balance and self.steps % self.attack.unlearn_every == 0:
            self._copy = self.unlearned(trigger)
            self._weight = self.attack.balance * similarity(self._copy, self.tensors)
        self.steps += 1
        drawn = self.pool.draw(self.attack.search_batch, self.rng)
        triggered = poison_batch(drawn, trigger, self.attack.target)
        loss = cross_entropy(self.model, self.tensors, triggered)
        if self._copy is not None:
            loss = loss + self._weight * cross_entropy(self.model, self._copy, triggered)
        return loss

    def unlearned(self, trigger: Trigger) -> dict[str, Tensor]:
        """theta': the global model after some steps on triggered images with their true labels."""
        tensors = dict(self.tensors)
        names = [name for name in tensors if name in parameter_names(self.model)]
        frozen = trigger.with_pattern(trigger.pattern.detach())
        for _ in range(self.attack.unlearn_steps):
            batch = self.pool.draw(self.attack.search_batch, self.rng)
            leaves = {name: tensors[name].detach().requires_grad_() for name in names}
            stamped = batch._replace(x=frozen.stamp(batch.x))
            loss = cross_entropy(self.model, tensors | leaves, stamped)
            gradients = torch.autograd.grad(loss, list(leaves.values()))
            for name, gradient in zip(names, gradients, strict=True):
                tensors[name] = tensors[name] - self.attack.unlearn_rate * gradient
        return tensors


def cross_entropy(model: nn.Module, tensors: Tensors, batch: Batch) -> Tensor:
    """[], the mean over the batch."""
    logits, _ = FunctionalModel(model)(tensors, batch)
    return functional.cross_entropy(logits, batch.y)


def similarity(ours: Tensors, theirs: Tensors) -> float:
    """The cosine of two models' floating-point tensors, all together."""
    names = [name for name, value in theirs.items() if value.is_floating_point()]
    a, b = (torch.cat([one[name].detach().double().reshape(-1) for name in names]) for one in (ours, theirs))
    return float(functional.cosine_similarity(a, b, dim=0))
