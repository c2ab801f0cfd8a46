"""What FedAvgM, FedAdam and FedYogi share: an optimiser that takes another rule's update as its gradient.

Reddi et al., "Adaptive Federated Optimization", ICLR 2021, Algorithm 1 (FedOpt), with the minus sign inside:
the pseudo-gradient is -Delta, and an update is added to the model.

BatchNorm's running statistics are averages, not parameters: momentum would carry a variance below zero (see
`strategies.layers.average_statistics`). They take the inner rule's update as it is.
"""

from collections.abc import Callable, Mapping

from torch import Tensor

from fedsim.contracts import Cohort, Decision, Server, Strategy, Tensors, Vector
from strategies.layers import statistics
from strategies.rows import require

Move = Callable[[Vector], tuple[Vector, dict[str, Tensor]]]

INNER = "rule/"
"""Prefix of the inner rule's state."""


def start(rule: Strategy, model: Vector, own: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The optimiser's own state, and the inner rule's under its prefix."""
    return {**own, **{f"{INNER}{name}": value for name, value in rule.init(model).items()}}


def follow(
    rule: Strategy, state: Tensors, cohort: Cohort, server: Server, move: Move
) -> tuple[dict[str, Tensor], Decision]:
    """One step of the inner rule, then one of the optimiser.

    Args:
        rule: makes Delta of the cohort, and the clients' weights.
        state: the optimiser's, and the inner rule's under its prefix.
        cohort: of the round.
        server: of the round.
        move: Delta [d] float64 -> (the optimiser's update [d] float64, its new state).
    """
    inner = {name.removeprefix(INNER): value for name, value in state.items() if name.startswith(INNER)}
    inner_after, decision = rule.step(inner, cohort, server)
    moved, own = move(decision.update.double())
    update = moved.to(decision.update.dtype)
    for piece in statistics(cohort.layout):
        update[piece.columns] = decision.update[piece.columns]
    after = {**own, **{f"{INNER}{name}": value for name, value in inner_after.items()}}
    return after, Decision(update=update, weights=decision.weights, downlink=decision.downlink)


def require_share(name: str, value: float) -> None:
    """Refuse a decay outside [0, 1)."""
    require(0 <= value < 1, f"{name} must lie in [0, 1), found {value}")


def require_positive(name: str, value: float) -> None:
    """Refuse a number that is not above 0 and finite."""
    require(0 < value < float("inf"), f"{name} must be above 0, found {value}")
