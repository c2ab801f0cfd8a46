"""The server rule's part of a round: somebody else's code, whose answers are checked before they are used."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from fedsim.contracts import Cohort, Decision, Server, Strategy, Tensors, Vector
from fedsim.errors import FedsimError, PluginError, RoundError, attributed
from fedsim.params import Layout
from fedsim.rng import seeded_globals


def first_state(strategy: Strategy, model: Vector) -> Tensors:
    """The rule's state before round 1.

    Raises:
        PluginError: its code raised, or returned something else.
    """
    what = f"strategy.kind: {type(strategy).__name__}.init"
    with attributed(what, PluginError):
        state = strategy.init(model)
    require_tensors(state, f"{what} returned", PluginError)
    return state


def decide(strategy: Strategy, state: Tensors, cohort: Cohort, server: Server) -> tuple[Tensors, Decision]:
    """What `strategy.step` returns; global random generators depend on the round's seed meanwhile.

    Raises:
        RoundError: its code raised, changed the cohort, or returned anything but (state, Decision).
    """
    what, before = f"Round {cohort.round}: {type(strategy).__name__}.step", cohort.updates._version
    with attributed(what, RoundError), seeded_globals(server.rng.initial_seed()):
        answer: Any = strategy.step(state, cohort, server)
    if cohort.updates._version != before:
        raise RoundError(f"{what} changed cohort.updates in place; let it work on cohort.updates.clone().")
    said = f"{what} returned"
    if not (isinstance(answer, tuple) and len(answer) == 2 and isinstance(answer[1], Decision)):
        raise RoundError(f"{said} {_kind(answer)}, wanted (state, Decision).")
    remembered, decision = answer
    require_tensors(remembered, f"{said} as state", RoundError)
    require_tensors(decision.downlink, f"{said} as Decision.downlink", RoundError)
    _require_vectors(decision, len(cohort.partitions), cohort.layout.size, f"{said} as Decision")
    return remembered, decision


def _require_vectors(decision: Decision, clients: int, size: int, said: str) -> None:
    """Refuse shapes and shares of clients that nobody could use, or score as a detector."""
    if not (isinstance(decision.update, Tensor) and decision.update.is_floating_point()):
        raise RoundError(f"{said}.update {_kind(decision.update)}, wanted a floating-point tensor.")
    for name, wanted in (("weights", (clients,)), ("trust", (clients,)), ("aggregate", (size,))):
        found: Any = getattr(decision, name)
        if found is None:
            continue
        if not (isinstance(found, Tensor) and tuple(found.shape) == wanted):
            raise RoundError(f"{said}.{name} {_kind(found)}, wanted a tensor of shape {wanted}.")
        if not bool(torch.isfinite(found).all()):
            raise RoundError(f"{said}.{name} values that are not finite.")
    if decision.weights is not None and bool((decision.weights < 0).any()):
        raise RoundError(f"{said}.weights values below 0, and no client can have such a share.")


def require_tensors(found: Any, said: str, error: type[FedsimError]) -> None:
    """Refuse what a checkpoint could not hold.

    Args:
        found: should be named tensors, dense and not complex.
        said: the beginning of the message.
        error: to raise.
    """
    if not isinstance(found, Mapping):
        raise error(f"{said} {_kind(found)}, wanted named tensors ({{}} where there are none).")
    for name, value in found.items():
        if not isinstance(value, Tensor) or value.layout is not torch.strided or value.is_complex():
            raise error(f"{said} {name!r}: {_kind(value)}, wanted a dense tensor of real numbers.")


def _kind(value: Any) -> str:
    """Type and shape in words."""
    if isinstance(value, Tensor):
        return f"a tensor of shape {tuple(value.shape)} and type {value.dtype}"
    return "None" if value is None else f"an object of type {type(value).__name__}"


def apply(model: Vector, decision: Decision, cohort: Cohort, layout: Layout) -> Vector:
    """The new model, [d]: added in float64, then rounded to the layout's type.

    Raises:
        RoundError: the rule's update is misshapen or not finite.
    """
    update = decision.update.detach()  # a gradient's graph would grow from round to round
    if tuple(update.shape) != (layout.size,):
        raise RoundError(
            f"Round {cohort.round}: the rule made an update of shape {tuple(update.shape)}, "
            f"wanted ({layout.size},)."
        )
    new = (model.double() + update.to(model.device).double()).to(layout.dtype)
    if not bool(torch.isfinite(new).all()):
        raise RoundError(
            f"Round {cohort.round}: the rule made a model that is not finite from {len(cohort.partitions)} "
            "finite updates: lower its step size, or the clients' learning rate."
        )
    return new
