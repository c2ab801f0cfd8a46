"""Ditto: beside the shared model, each client trains one of its own, pulled towards the received one.

Li et al., "Ditto: Fair and Robust Federated Learning Through Personalization", ICML 2021, Algorithm 1:
the personal model v minimises F(v) + lambda / 2 |v - w_t|^2, where w_t is the model received in this round;
the shared model is trained as without Ditto. Both take `epochs` passes; the order is of no effect.
"""

from dataclasses import dataclass, replace

import torch

from clients.proximal import pulled, refuse_negative
from clients.supervised import Supervised
from fedsim.contracts import ClientInfo, DataSpec, LocalProgram, Tensors
from fedsim.training.functional import model_tensors, parameter_names
from fedsim.training.losses import supervised_losses

PERSONAL = "personal/"


@dataclass(frozen=True, kw_only=True)
class Ditto(Supervised):
    """A client is evaluated on its personal model, which starts where the shared one does.

    Attributes:
        pull: lambda, at least 0; 0 is local training beside an unused federation.
    """

    pull: float

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse_negative("pull", self.pull)

    def init(self, client: ClientInfo, rng: torch.Generator) -> Tensors:
        """The personal model."""
        tensors = model_tensors(self.model.build(client.spec))
        return {PERSONAL + name: tensor for name, tensor in tensors.items()}

    def build_program(self, spec: DataSpec, round: int) -> LocalProgram:
        """The phase of the shared model, then that of the personal one."""
        program = super().build_program(spec, round)
        own = {PERSONAL + name for name in parameter_names(program.model)}  # statistics are not trained
        plain = supervised_losses(program.model, PERSONAL)
        personal = self.phase(
            program.model,
            spec,
            round,
            trains=lambda name: name in own,
            losses=pulled(plain, program.model, self.pull, PERSONAL),
        )
        shared = replace(program.phases[0], trains=lambda name: not is_personal(name))
        return replace(program, phases=(shared, personal), used=personal_model)


def is_personal(name: str) -> bool:
    """Is this a tensor of the personal model?"""
    return name.startswith(PERSONAL)


def personal_model(tensors: Tensors) -> Tensors:
    """The personal model's tensors under the model's own names."""
    return {name.removeprefix(PERSONAL): t for name, t in tensors.items() if is_personal(name)}
