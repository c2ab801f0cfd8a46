"""Plain local training: one phase of mini-batch descent on the cross-entropy.

The client side of McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized
Data", AISTATS 2017, Algorithm 1 (ClientUpdate). Everything is shared; nothing is private, unless `private`
names parts of the model, or the optimiser's state is kept.

Methods that train the same way but share, freeze or penalise something else derive from `Supervised`
and change the program that `build_program` makes, or the phases that `phase` makes.
"""

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal

from torch import nn

from clients.models.checks import at_least
from clients.parts import matches, refuse_unknown_parts
from fedsim.contracts import ClientInfo, DataSpec, LocalProgram, ModelBuilder, Optimizer, Phase
from fedsim.errors import ConfigError
from fedsim.training.losses import model_draw, supervised_losses
from fedsim.training.method import WithoutState
from fedsim.training.optimizers import Sgd
from fedsim.training.schedules import Constant, Schedule
from fedsim.training.transforms import clip_by_norm

BATCH_SIZE = 32  # rows or graphs


@dataclass(frozen=True, kw_only=True)
class Supervised(WithoutState):
    """Classification of rows, nodes or graphs.

    Attributes:
        model: what is trained.
        optimizer: its learning rate is the one that `schedule` scales.
        epochs: passes over the client's training split in a round.
        batch_size: rows or graphs per step, or "full" (in Python also None). "auto" is 32; on nodes it
            is "full", the only choice there, since a client's nodes are connected.
        clip_norm: largest Euclidean norm of a step's gradient; unset: no limit.
        schedule: the learning rate over the rounds.
        keep_optimizer: keep momentum and the like between a client's rounds, as private state.
        private: modules or tensors of the model that never leave the client, such as `["head"]`. Clients
            with different inputs or labels need their first and last layers here.
    """

    model: ModelBuilder
    optimizer: Optimizer = Sgd(learning_rate=0.1)  # noqa: RUF009 - frozen
    epochs: int = 1
    batch_size: int | Literal["auto", "full"] | None = "auto"
    clip_norm: float | None = None
    schedule: Schedule = Constant()  # noqa: RUF009 - frozen
    keep_optimizer: bool = False
    private: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        at_least("epochs", self.epochs, 1)
        if isinstance(self.batch_size, int):
            at_least("batch_size", self.batch_size, 1)
        if self.clip_norm is not None and not self.clip_norm > 0:
            raise ConfigError(f"clip_norm must be above 0, found {self.clip_norm}.")

    def program(self, client: ClientInfo, round: int) -> LocalProgram:
        """One phase that trains all parameters; the same program for all clients with data of one kind.

        Raises:
            ConfigError: the model cannot serve the client's data, or `batch_size` is a number on nodes.
        """
        return _program(self, client.spec, round)

    def build_program(self, spec: DataSpec, round: int) -> LocalProgram:
        """The program for data of one kind, made anew."""
        model = self.model.build(spec)
        refuse_unknown_parts(self.private, model)
        return LocalProgram(
            model=model,
            is_shared=self.is_shared,
            phases=(self.phase(model, spec, round),),
            keep_optimizer=self.keep_optimizer,
            stack=(self, spec, round),
        )

    def is_shared(self, name: str) -> bool:
        """Does this tensor of the model leave the client?"""
        return not matches(self.private, name)

    def phase(self, model: nn.Module, spec: DataSpec, round: int, **changes: Any) -> Phase:
        """The phase that trains all parameters of `model`; `changes` replace fields of it."""
        phase = Phase(
            trains=everything,
            losses=supervised_losses(model),
            draw=model_draw(model),
            optimizer=scheduled(self.optimizer, self.schedule, round),
            epochs=self.epochs,
            batch_size=self._rows_per_step(spec),
            transform=None if self.clip_norm is None else clip_by_norm(self.clip_norm),
        )
        return replace(phase, **changes)

    def _rows_per_step(self, spec: DataSpec) -> int | None:
        if self.batch_size == "full" or self.batch_size is None:
            return None
        if spec.task != "nodes":
            return BATCH_SIZE if self.batch_size == "auto" else self.batch_size
        if self.batch_size == "auto":
            return None
        raise ConfigError(
            f"client.batch_size = {self.batch_size}, but the data are nodes, which are trained all at "
            'once: leave batch_size out or set it to "full".'
        )


@lru_cache(maxsize=64)
def _program(method: Supervised, spec: DataSpec, round: int) -> LocalProgram:
    return method.build_program(spec, round)


def scheduled(optimizer: Optimizer, schedule: Schedule, round: int) -> Optimizer:
    """The optimiser with its learning rate times the schedule's factor in this round."""
    frozen: Any = optimizer  # a dataclass, as every plugin is
    changed: Optimizer = replace(frozen, learning_rate=optimizer.learning_rate * schedule.factor(round))
    return changed


def everything(name: str) -> bool:
    """A predicate that accepts every tensor."""
    return True
