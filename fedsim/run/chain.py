"""A rule with pre-aggregations in front of it and refinements behind it, which is again a rule."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from fedsim.contracts import (
    After,
    Before,
    Cohort,
    Decision,
    Matrix,
    Mixture,
    Server,
    Strategy,
    Tensors,
    Vector,
)
from fedsim.errors import RoundError, attributed


@dataclass(frozen=True, kw_only=True)
class Chain:
    """`strategy.before`, then the rule, then `strategy.after`.

    Attributes:
        before: change the rows, in their order.
        rule: sees the changed rows; its state is the chain's.
        after: change the new model, in their order.
    """

    before: tuple[Before, ...]
    rule: Strategy
    after: tuple[After, ...]

    def init(self, model: Vector) -> Tensors:
        """The rule's."""
        return self.rule.init(model)

    def step(self, state: Tensors, cohort: Cohort, server: Server) -> tuple[Tensors, Decision]:
        """The rule's decision on the mixed rows, told of the clients; its update makes the refined model.

        Raises:
            RoundError: a part raised, or returned something misshapen or not finite.
        """
        rows, origins = cohort.updates, []
        for number, mixer in enumerate(self.before):
            rows, shares = _mixed(mixer, rows, server, f"Round {cohort.round}: strategy.before[{number}]")
            origins.append(shares)
        state, decision = self.rule.step(state, replace(cohort, updates=rows), server)
        if origins:
            told = _of_clients(decision.weights, origins), _of_clients(decision.trust, origins)
            decision = replace(decision, weights=told[0], trust=told[1])
        if not self.after:
            return state, decision
        start = server.model.double()
        new = (start + decision.update.double()).to(server.model.dtype)
        for number, refiner in enumerate(self.after):
            said = f"Round {cohort.round}: strategy.after[{number}]"
            with attributed(f"{said}: {type(refiner).__name__}.refine", RoundError):
                new = refiner.refine(new, cohort.round, cohort.layout, server)
            if new.shape != start.shape:
                raise RoundError(
                    f"{said} made a model of shape {tuple(new.shape)}, wanted {tuple(start.shape)}."
                )
        aggregate = decision.update if decision.aggregate is None else decision.aggregate
        return state, replace(decision, update=new.double() - start, aggregate=aggregate)


def _of_clients(weights: Vector | None, origins: Sequence[Matrix]) -> Vector | None:
    """[n], what mixed rows weigh -> what the clients behind them weigh."""
    if weights is None:
        return None
    weights = weights.double()
    for shares in reversed(origins):
        weights = shares.double().T @ weights
    return weights


def _mixed(mixer: Before, rows: Matrix, server: Server, said: str) -> Mixture:
    n = len(rows)
    with attributed(f"{said}: {type(mixer).__name__}.mix", RoundError):
        mixed = mixer.mix(rows, server)
        fits = mixed.rows.shape == rows.shape and mixed.origins.shape == (n, n)
        finite = bool(torch.isfinite(mixed.rows).all())
    if not fits or not finite:
        raise RoundError(
            f"{said} made rows of shape {tuple(mixed.rows.shape)} from clients of shape "
            f"{tuple(mixed.origins.shape)}, wanted finite {tuple(rows.shape)} and {(n, n)}."
        )
    return mixed
