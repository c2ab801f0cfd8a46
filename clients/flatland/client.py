"""FlatLand's client: which parameters are time-like and stay, which are space-like and travel.

Private: every m (`convolutions.*.time`, and the scale of Chen's time coordinate) and K (`curvature`).
Shared: every M and b, and the decoder unless `private` names it. The server is plain `fedavg`.
K starts from the Forman-Ricci curvature of the client's own graph.
"""

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import nn

from clients.flatland.curvature import raw_of, simple_graph, starting_k
from clients.flatland.diagnose import GRAPH, graph_facts, told
from clients.parts import matches
from clients.supervised import Supervised
from fedsim.contracts import ClientInfo, DataSpec, LocalProgram, Optimizer, Tensors
from fedsim.errors import ConfigError
from fedsim.training.functional import model_tensors, parameter_names

CURVATURE = "curvature"


@dataclass(frozen=True, kw_only=True)
class FlatLand(Supervised):
    """As `supervised`, with time-like parameters private; models: `lorentz`, `private_column`.

    Attributes:
        keep_optimizer: as there, but on by default: Adam made anew every round upsets averaging.
        share: `space` is FlatLand; `all` averages everything, K too; `nothing` is local training.
        decoupled: convolutions, counted from 0, whose m is private; unset: all of them. K always is.
        triangles: K starts from the augmented Forman-Ricci curvature.
        diagnostics: tell K, norms, residuals and the shape of the graph at every evaluation. K is a
            private parameter: with this it leaves the client as a number of the record.
    """

    keep_optimizer: bool = True
    share: Literal["space", "all", "nothing"] = "space"
    decoupled: tuple[int, ...] | None = None
    triangles: bool = False
    diagnostics: bool = False

    @property
    def federates(self) -> bool:
        """Does anything leave a client?"""
        return self.share != "nothing"

    def init(self, client: ClientInfo, rng: torch.Generator) -> Tensors:
        """K from the client's graph, where it is private, and with `diagnostics` facts about the graph."""
        batch = client.data.train.batch()
        template = model_tensors(self.model.build(client.spec))
        found = graph_facts(batch, rng) if self.diagnostics else {}
        if CURVATURE in template and not self.is_shared(CURVATURE) and batch.edge_index is not None:
            k = starting_k(simple_graph(batch.edge_index, len(batch.x)), triangles=self.triangles)
            found[CURVATURE] = torch.full_like(template[CURVATURE], raw_of(k))
        return found

    def diagnose(self, client: ClientInfo, model: nn.Module, tensors: Tensors) -> dict[str, float]:
        """See `clients.flatland.diagnose`; nothing unless `diagnostics` asks for it."""
        return told(client, model, tensors) if self.diagnostics else {}

    def is_shared(self, name: str) -> bool:
        """Does this tensor of the model leave the client?"""
        if self.share == "nothing" or not super().is_shared(name):
            return False
        return self.share == "all" or not self._time_like(name)

    def build_program(self, spec: DataSpec, round: int) -> LocalProgram:
        """One phase over all parameters; K has no weight decay.

        Raises:
            ConfigError: the model has no time-like parameters, or not the convolutions asked for.
        """
        program = super().build_program(spec, round)
        refuse_plain_model(program.model, self.decoupled)
        (phase,) = program.phases
        phase = replace(phase, trains=lambda name: not name.startswith(GRAPH))
        if CURVATURE in parameter_names(program.model):
            free = without_decay(phase.optimizer)
            phase = replace(phase, groups=((is_curvature, free),))
        return replace(program, phases=(phase,))

    def _time_like(self, name: str) -> bool:
        if name == CURVATURE:
            return True
        if not name.endswith((".time", ".time_scale")):
            return False
        chosen = self.decoupled
        return chosen is None or matches([f"convolutions.{index}" for index in chosen], name)


def is_curvature(name: str) -> bool:
    """Is this the parameter behind K?"""
    return name == CURVATURE


def without_decay(optimizer: Optimizer) -> Optimizer:
    """The optimiser with weight decay 0, where it has any."""
    if not getattr(optimizer, "weight_decay", 0.0):
        return optimizer
    changed: Optimizer = replace(optimizer, weight_decay=0.0)  # type: ignore[type-var]
    return changed


def refuse_plain_model(model: nn.Module, decoupled: tuple[int, ...] | None) -> None:
    """Refuse a model without time-like parameters, or without the convolutions named.

    Raises:
        ConfigError: it is one.
    """
    found = [name for name in model_tensors(model) if name.endswith(".time")]
    if not found:
        raise ConfigError(
            f'client.kind = "flatland" needs time-like parameters, which {type(model).__name__} lacks: '
            'choose model.kind = "lorentz" or "private_column".'
        )
    for index in decoupled or ():
        if f"convolutions.{index}.time" not in found:
            raise ConfigError(
                f"client.decoupled = {list(decoupled or ())}, but the model's convolutions are "
                f"0 to {len(found) - 1}."
            )
