"""APFL: each client uses a mixture of the shared model and one of its own, with a learnt share.

Deng et al., "Adaptive Personalized Federated Learning", 2020, Algorithm 1: w descends on F(w), v on
F(alpha v + (1 - alpha) w) with w fixed, both from their values before the step. Alpha descends on the
same mixed loss (equation 10) and is clipped to [0, 1]; the paper moves it once in a round, here it moves in
every step.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from clients.supervised import Supervised, scheduled
from fedsim.contracts import Batch, ClientInfo, Context, DataSpec, LocalProgram, Tensors
from fedsim.errors import ConfigError
from fedsim.training.functional import model_tensors, parameter_names
from fedsim.training.losses import supervised_losses
from fedsim.training.optimizers import Sgd

OWN, ALPHA = "own/", "alpha"


@dataclass(frozen=True, kw_only=True)
class Apfl(Supervised):
    """A client is evaluated on the mixture; its own model starts where the shared one does.

    Attributes:
        alpha: the own model's share at the start, in [0, 1].
        alpha_rate: the learning rate of alpha, scaled by `schedule`; 0: it stays as it is.
    """

    alpha: float = 0.5
    alpha_rate: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.alpha <= 1:
            raise ConfigError(f"alpha must be between 0 and 1, found {self.alpha}.")
        if not 0 <= self.alpha_rate < float("inf"):
            raise ConfigError(f"alpha_rate must be at least 0 and finite, found {self.alpha_rate}.")

    def init(self, client: ClientInfo, rng: torch.Generator) -> Tensors:
        """The own model, and alpha []."""
        tensors = model_tensors(self.model.build(client.spec))
        dtype = next(tensor.dtype for tensor in tensors.values() if tensor.is_floating_point())
        return {ALPHA: torch.tensor(self.alpha, dtype=dtype)} | {OWN + n: t for n, t in tensors.items()}

    def build_program(self, spec: DataSpec, round: int) -> LocalProgram:
        """One phase with the two losses, whose gradients reach different tensors."""
        program = super().build_program(spec, round)
        model, mixing = program.model, self.alpha_rate > 0
        plain, parameters = supervised_losses(model), parameter_names(model)

        def both(tensors: Tensors, batch: Batch, context: Context) -> tuple[Tensor, Tensors]:
            shared, buffers = plain(tensors, batch, context)
            mixed, own = plain(mixture(tensors, parameters), batch, context)
            return torch.stack([shared, mixed]), {**buffers, **{OWN + n: t for n, t in own.items()}}

        def trains(name: str) -> bool:
            return name.removeprefix(OWN) in parameters or (mixing and name == ALPHA)

        phase = replace(program.phases[0], losses=both, trains=trains)
        if mixing:
            rate = scheduled(Sgd(learning_rate=self.alpha_rate), self.schedule, round)
            phase = replace(phase, groups=((is_alpha, rate),), project=clipped)
        return replace(program, phases=(phase,), used=lambda tensors: mixture(tensors, parameters))


def is_alpha(name: str) -> bool:
    """Is this the share of the own model?"""
    return name == ALPHA


def clipped(tensors: Tensors, context: Context) -> Tensors:
    """Alpha in [0, 1], as after every step."""
    return {ALPHA: tensors[ALPHA].clamp(0, 1)}


def mixture(tensors: Tensors, parameters: frozenset[str]) -> dict[str, Tensor]:
    """The weights alpha v + (1 - alpha) w, w counting as constant; buffers are those of the own model."""
    alpha = tensors[ALPHA]
    return {
        name: alpha * own + (1 - alpha) * tensors[name].detach() if name in parameters else own
        for name, own in _own(tensors)
    }


def _own(tensors: Tensors) -> Iterator[tuple[str, Tensor]]:
    for name, tensor in tensors.items():
        if name.startswith(OWN):
            yield name.removeprefix(OWN), tensor
