"""FedBN: BatchNorm layers stay with the client, all the rest is averaged.

Li et al., "FedBN: Federated Learning on Non-IID Features via Local Batch Normalization", ICLR 2021,
Algorithm 1. Parameters and statistics of the layers are private alike.
"""

from dataclasses import dataclass, replace

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from clients.parts import matches
from clients.supervised import Supervised
from fedsim.contracts import DataSpec, LocalProgram
from fedsim.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class FedBn(Supervised):
    """As `supervised`, with every BatchNorm private."""

    def build_program(self, spec: DataSpec, round: int) -> LocalProgram:
        """The supervised program that shares no BatchNorm.

        Raises:
            ConfigError: the model has none.
        """
        program = super().build_program(spec, round)
        own = (*self.private, *batch_norms(program.model))
        return replace(program, is_shared=lambda name: not matches(own, name))


def batch_norms(model: nn.Module) -> tuple[str, ...]:
    """The names of the model's BatchNorm layers.

    Raises:
        ConfigError: there are none, or nothing but them.
    """
    found = tuple(name for name, module in model.named_modules() if isinstance(module, _BatchNorm))
    if not found:
        raise ConfigError(
            f'client.kind = "fedbn" keeps BatchNorm layers private, but {type(model).__name__} has none: '
            'choose a model with them, such as model = { kind = "resnet18", norm = "batch" }.'
        )
    return found
