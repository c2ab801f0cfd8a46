"""A rule with pre-aggregations in front of it and refinements behind it, which is again a rule."""

from dataclasses import dataclass, replace

import torch

from fedsim.contracts import After, Before, Cohort, Decision, Matrix, Server, Strategy, Tensors, Vector
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
        """The rule's decision on the mixed rows, its update being that of the refined model.

        Raises:
            RoundError: a part raised, or returned something misshapen or not finite.
        """
        rows = cohort.updates
        for number, mixer in enumerate(self.before):
            rows = _mixed(mixer, rows, server, f"Round {cohort.round}: strategy.before[{number}]")
        state, decision = self.rule.step(state, replace(cohort, updates=rows), server)
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
        return state, replace(decision, update=new.double() - start)


def _mixed(mixer: Before, rows: Matrix, server: Server, said: str) -> Matrix:
    with attributed(f"{said}: {type(mixer).__name__}.mix", RoundError):
        mixed = mixer.mix(rows, server)
    if mixed.shape != rows.shape or not bool(torch.isfinite(mixed).all()):
        raise RoundError(
            f"{said} made rows of shape {tuple(mixed.shape)}, wanted finite {tuple(rows.shape)}."
        )
    return mixed
