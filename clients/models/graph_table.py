"""The `[model]` table that all graph networks have in common."""

from dataclasses import dataclass
from typing import ClassVar

from torch import nn

from clients.models.checks import at_least, is_rate, require_task
from clients.models.readout import Readout
from fedsim.contracts import DataSpec


@dataclass(frozen=True, kw_only=True)
class GraphTable:
    """For nodes and graphs.

    Attributes:
        hidden: units of every hidden state.
        layers: convolutions.
        dropout: share of hidden units dropped in training.
        readout: how a graph's node states become one; of no effect on nodes.
    """

    name: ClassVar[str]
    """In an experiment file."""

    hidden: int = 64
    layers: int = 2
    dropout: float = 0.5
    readout: Readout = "mean"

    def __post_init__(self) -> None:
        at_least("hidden", self.hidden, 1)
        at_least("layers", self.layers, 1)
        is_rate("dropout", self.dropout)

    def build(self, spec: DataSpec) -> nn.Module:
        """The module for nodes or graphs.

        Raises:
            ConfigError: the data are rows.
        """
        require_task(self.name, spec, "nodes", "graphs")
        return self.module(spec)

    def module(self, spec: DataSpec) -> nn.Module:
        """The same, for data that were checked."""
        raise NotImplementedError(f"{type(self).__name__} builds no module")
