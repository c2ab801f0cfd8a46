"""A server that owns the model: after every aggregation it presses its key into the new model.

The mark is that of Downer et al., "Watermarking Graph Neural Networks via Explanations for Ownership
Protection", ICML 2026; pressing it into a finished model is described in `fedsim.watermark.imprint`.

    strategy = { kind = "fedavg", after = [{ kind = "watermark", key = "key.json", data = "Amazon/Photo",
                 model = { kind = "sage" } }] }
"""

import math
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path

from torch import nn

from fedsim.contracts import DataSpec, ModelBuilder, Optimizer, Server, Vector
from fedsim.errors import ConfigError, RoundError
from fedsim.params import Layout
from fedsim.training.functional import model_tensors
from fedsim.training.optimizers import Adam
from fedsim.training.template import SeededModel
from fedsim.watermark.embedding import Mark
from fedsim.watermark.imprint import imprint
from fedsim.watermark.key import read_key
from fedsim.watermark.sources import read_graph
from fedsim.watermark.subgraphs import Graph


@dataclass(frozen=True, kw_only=True)
class Watermark:
    """The owner's step after the rule.

    Attributes:
        key: file of `fedsim watermark keygen`.
        data: the graph that the key was made for, as `--data` of that command.
        model: as in the table [model].
        steps: over the owner's graph in every round.
        optimizer: fresh in every round.
        strength: r, the weight of the mark's loss.
        margin: epsilon.
        last_round: after it the model is left alone; unset: never.
    """

    key: str
    data: str
    model: ModelBuilder
    steps: int = 10
    optimizer: Optimizer = field(default_factory=lambda: Adam(learning_rate=1e-3))
    strength: float = 100.0
    margin: float = 0.01
    last_round: int | None = None

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise ConfigError(f"steps must be at least 1, found {self.steps}.")
        if not 0 < self.strength < math.inf:
            raise ConfigError(f"strength must be above 0 and finite, found {self.strength}.")
        if not 0 <= self.margin < math.inf:
            raise ConfigError(f"margin must be at least 0 and finite, found {self.margin}.")

    def refine(self, model: Vector, round: int, layout: Layout, server: Server) -> Vector:
        """[d] -> [d].

        Raises:
            ConfigError: key and data do not fit together.
            RoundError: the federation's model is not the one of `model`, or is not shared whole.
        """
        if self.last_round is not None and round > self.last_round:
            return model
        template, mark, graph = _ready(self, layout)
        marked = imprint(
            template,
            layout.unflatten(model.to(layout.dtype), {}),
            [mark],
            graph,
            optimizer=self.optimizer,
            steps=self.steps,
            strength=self.strength,
            margin=self.margin,
        )
        return layout.flatten(marked).to(model.dtype)


@lru_cache(maxsize=4)
def _ready(plan: Watermark, layout: Layout) -> tuple[nn.Module, Mark, Graph]:
    """What stays the same over the rounds."""
    key, graph = read_key(Path(plan.key)), read_graph(plan.data)
    spec = DataSpec("nodes", (graph.x.shape[1],), graph.classes)
    template = SeededModel(plan.model, 0, layout.dtype).build(spec)
    wanted = Layout.of(model_tensors(template))
    if wanted != layout:
        raise RoundError(
            "strategy.after: watermark: its model is not the federation's: "
            f"{len(wanted.floats)} tensors with {wanted.size} values here, {len(layout.floats)} with "
            f"{layout.size} there."
        )
    graph = replace(graph, x=graph.x.to(layout.dtype))
    return template, Mark.of(template, key, graph), graph
