"""Stage A in an attack's state: moments of the drift, and V as one mask per tensor."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from attacks.cto_vpa import stability
from attacks.cto_vpa.stability import Layer
from attacks.neurotoxin import by_name
from attacks.trigger_search import require_whole
from fedsim.contracts import Tensors, Vector
from fedsim.errors import RoundError
from fedsim.threat import View
from fedsim.training.functional import parameter_names

Subset = Literal["score", "random", "lowest", "none"]

MOMENTS = "moments/"
VULNERABLE = "V/"  # and the name of a parameter


@dataclass(frozen=True)
class Selection:
    """How V is chosen.

    Attributes:
        subset: by what units are ranked; "none": V is every parameter.
        rho: share of each layer's units.
        row: of the last layer, to be in V whatever its rank; None: no such row.
    """

    subset: Subset
    rho: float
    row: int | None

    @property
    def ranks(self) -> bool:
        """Does it need the observed drift?"""
        return self.subset in ("score", "lowest")

    def masks(self, view: View, moments: Tensors, rng: torch.Generator) -> dict[str, Tensor]:
        """V as entries of the state: one bool tensor per trained parameter of the shared model.

        Raises:
            RoundError: the model has no layers, or fewer outputs than the row, or clients keep a part of it.
        """
        names = parameter_names(view.program.model)
        parts = _layers(view)
        if self.subset == "none":
            mask = torch.ones(view.layout.size, dtype=torch.bool)
        else:
            ranking = self._ranking(view, parts, moments, rng)
            chosen = stability.top_share(ranking, parts, self.rho)
            mask = stability.coordinates(chosen, parts, view.layout.size)
        named = by_name(mask, view.layout)
        return {f"{VULNERABLE}{name}": one.clone() for name, one in named.items() if name in names}

    def _ranking(
        self, view: View, parts: tuple[Layer, ...], moments: Tensors, rng: torch.Generator
    ) -> Vector:
        if self.subset == "random":
            ranking = torch.rand(sum(one.units for one in parts), generator=rng, dtype=torch.float64)
        else:
            ranking = stability.score(moments) * (-1 if self.subset == "lowest" else 1)
        if self.row is None:
            return ranking
        require_whole(view)  # else the last shared layer is not the one with a row per label
        if self.row >= parts[-1].units:
            raise RoundError(
                f"force_target_row: the last layer, {parts[-1].name!r}, has {parts[-1].units} rows, none for "
                f"the target {self.row}."
            )
        return stability.first(ranking, parts, self.row)


def watched(state: Tensors, view: View) -> dict[str, Tensor]:
    """The entries of the state that the round's model changes."""
    after = stability.watched(moments_in(state), stability.magnitudes(view.model, _layers(view)))
    return {f"{MOMENTS}{name}": value for name, value in after.items()}


def moments_in(state: Tensors) -> dict[str, Tensor]:
    """The moments by their names."""
    return _under(MOMENTS, state)


def masks_in(state: Tensors) -> dict[str, Tensor]:
    """V by the parameters' names."""
    return _under(VULNERABLE, state)


def _under(prefix: str, state: Tensors) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}


def _layers(view: View) -> tuple[Layer, ...]:
    parts = stability.layers(view.layout, parameter_names(view.program.model))
    if not parts:
        raise RoundError(
            "Stage A needs a model with convolutions or linear layers, of which some are shared."
        )
    return parts
