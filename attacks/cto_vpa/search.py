"""Stage B on the attack's own images: the search for pixel values, against the round's global model."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from attacks.cto_vpa.coupling import Aim, TriggerLoss, recorded_features
from attacks.cto_vpa.stability import unit
from attacks.trigger_search import Examples, Search, improved, received_model, searcher
from attacks.triggers import Trigger, poison_batch
from fedsim.contracts import ClientData, Tensors, Vector
from fedsim.errors import RoundError
from fedsim.params import Layout
from fedsim.threat import View
from fedsim.training.functional import FunctionalModel

Direction = Literal["ones", "drift"]


@dataclass(frozen=True)
class CoupledSearch:
    """How stage B searches; see the keys of `attacks.cto_vpa.attack.CtoVpa`."""

    target: int
    coupling: float
    feature: float
    direction: Direction
    steps: int
    search: Search
    rate: float
    batch: int
    device: torch.device

    def run(
        self, trigger: Trigger, view: View, masks: Tensors, start: Vector | None, rng: torch.Generator
    ) -> Trigger:
        """The trigger after the search.

        Args:
            trigger: where to start.
            view: of the round, before training, with the colluders' data.
            masks: V, by name.
            start: [d], the first model observed, for the direction "drift".
            rng: draws the batches.
        """
        loss = self.loss(view, masks, start)
        pool = Examples.of(view.data or (), self.device, view.layout.dtype)
        pool = pool.chosen(pool.y != self.target)

        def of_batch(candidate: Trigger) -> Tensor:
            return loss(poison_batch(pool.draw(self.batch, rng), candidate, self.target))

        return improved(trigger, of_batch, self.steps, searcher(self.search, self.rate))

    def loss(self, view: View, masks: Tensors, start: Vector | None) -> TriggerLoss:
        """L(delta) on the round's model."""
        model, tensors = received_model(view, self.device)
        aim = centre = None
        if self.coupling:
            drift = None if self.direction == "ones" or start is None else view.model - start
            aim = aim_of(masks, drift, view.layout, self.device)
        if self.feature:
            centre = self._centre(model, tensors, view.data or ())
        return TriggerLoss(model, tensors, self.target, self.coupling, aim, self.feature, centre)

    def _centre(self, model: nn.Module, tensors: Tensors, data: Sequence[ClientData]) -> Tensor:
        """[f], the mean features of the target class among the attack's images; of all where it has none."""
        dtype = next(value.dtype for value in tensors.values() if value.is_floating_point())
        pool = Examples.of(data, self.device, dtype)
        with torch.no_grad(), recorded_features(model) as features:
            FunctionalModel(model)(tensors, pool.chosen(pool.y == self.target).batch)
        if not features:
            raise RoundError(
                "feature: the distance to the target's features needs a model with a linear layer."
            )
        return features[0].mean(dim=0)


def aim_of(masks: Tensors, drift: Vector | None, layout: Layout, device: torch.device) -> Aim:
    """V and u_V by name, without the tensors that have no coordinate in V.

    Args:
        masks: V, bool by name; floating-point tensors of the layout without one are outside.
        drift: [d]; None: the same in every coordinate.
        layout: of the shared model.
        device: where to put them.
    """
    nothing = {name: torch.zeros(shape) for name, shape, _ in (*layout.floats, *layout.integers)}
    mask = layout.flatten({**nothing, **masks}).bool()
    direction = unit(torch.ones_like(mask, dtype=layout.dtype) if drift is None else drift, mask)
    named = layout.unflatten(direction, layout.integers_of(nothing))
    kept = [name for name, one in masks.items() if bool(one.any())]
    return Aim(
        {name: named[name].to(device) for name in kept},
        {name: masks[name].to(device) for name in kept},
    )
