"""Neurotoxin: hide the backdoor in coordinates that benign clients hardly move.

Zhang et al., "Neurotoxin: Durable Backdoors in Federated Learning", ICML 2022, Algorithm 1.

The benign gradient is estimated by the global model's last change g = theta(t) - theta(t - 1). The malicious
update is projected after every step onto S = {the `keep_ratio` of all d coordinates where |g| is smallest},
and onto the ball of radius `norm_bound`. Usual values: keep_ratio 0.95 to 0.99 (0.95 for images), norm bounds
of 0.2 to 3 by task.

On top of BadNets; with `keep_ratio = 1` and no bound it is BadNets. Departures: the parameters are projected,
where the paper's code masks gradients, past which momentum and weight decay leak; coordinates are ranked over
the whole model, not per layer; the paper's code takes a gradient on clean data in place of the last change.
In round 1, where nothing has moved yet, all are kept. BatchNorm's statistics are no trained tensors
and follow the poisoned batches.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from attacks.badnets import BadNets
from attacks.programs import check_above_zero, keep_update_in, keep_update_within, then_project
from fedsim.contracts import ClientData, LocalProgram, Tensors
from fedsim.errors import ConfigError
from fedsim.params import Layout
from fedsim.threat import View

MASK = "keep/"  # of a tensor of the shared model, in the state


@dataclass(frozen=True, kw_only=True)
class Neurotoxin(BadNets):
    """A backdoor outside the coordinates that honest training changes most.

    See `BadNets` for the other attributes.

    Attributes:
        keep_ratio: share of the coordinates that the attack may change.
        norm_bound: largest Euclidean norm of the malicious update; unset: no bound.
    """

    keep_ratio: float = 0.95
    norm_bound: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.keep_ratio <= 1:
            raise ConfigError(f"keep_ratio must be above 0 and at most 1, found {self.keep_ratio}.")
        if self.norm_bound is not None:
            check_above_zero("norm_bound", self.norm_bound)

    def observe(self, state: Tensors, view: View, rng: torch.Generator) -> Tensors:
        """The coordinates to keep, from the model's change since the last round."""
        keep = torch.ones_like(view.model, dtype=torch.bool)
        if "previous" in state:
            keep = least_moved(view.model - state["previous"], self.keep_ratio, view.layout.trained)
        masks = {f"{MASK}{name}": mask.clone() for name, mask in by_name(keep, view.layout).items()}
        return {**state, **masks, "previous": view.model}

    def corrupt(
        self, state: Tensors, member: int, program: LocalProgram, data: ClientData
    ) -> tuple[LocalProgram, ClientData]:
        """Train on poisoned batches, projected after every step."""
        program, data = super().corrupt(state, member, program, data)
        if self.keep_ratio < 1:
            masks = {name.removeprefix(MASK): mask for name, mask in state.items() if name.startswith(MASK)}
            program = then_project(program, keep_update_in(masks))
        if self.norm_bound is not None:
            program = then_project(program, keep_update_within(self.norm_bound))
        return program, data


def least_moved(change: Tensor, ratio: float, trained: Tensor | None = None) -> Tensor:
    """[d] bool: the round(ratio * k) of k trained coordinates of smallest |change|, of equal ones the first.

    All of them where nothing changed. What is not trained is in it, and has no rank.

    Args:
        change: [d].
        ratio: in (0, 1].
        trained: [d] bool, k of them True; None: all.
    """
    ranked = torch.ones_like(change, dtype=torch.bool) if trained is None else trained.to(change.device)
    places, keep = ranked.nonzero().flatten(), torch.ones_like(ranked)
    if not change[places].any():
        return keep
    order = places[change[places].abs().argsort(stable=True)]
    keep[order[round(ratio * len(places)) :]] = False
    return keep


def by_name(keep: Tensor, layout: Layout) -> dict[str, Tensor]:
    """[d] bool as one mask per floating-point tensor, in its shape."""
    sizes = [math.prod(shape) for _, shape, _ in layout.floats]
    pieces = torch.split(keep, sizes)
    return {name: piece.view(shape) for (name, shape, _), piece in zip(layout.floats, pieces, strict=True)}
