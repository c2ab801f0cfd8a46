"""What the server itself can compute for its rule, in the driver: predictions, and trusted training."""

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from fedsim import rng
from fedsim.contracts import Batch, ClientData, ClientInfo, Examples, Predict, Server, Tensors, Vector
from fedsim.federation import TrainOrder
from fedsim.run.assembly import Parts
from fedsim.training.evaluate import evaluate, evaluation_mode
from fedsim.training.functional import FunctionalModel, model_tensors
from fedsim.training.sequential import train_client


@dataclass(frozen=True)
class ServerSide:
    """Makes the `Server` of every round.

    Attributes:
        parts: of the run.
    """

    parts: Parts

    def of(self, round: int, model: Vector, integers: Tensors) -> Server:
        """What the rule may use in this round; fresh, so that its generator has not been drawn from."""
        trusted = self._trusted
        return Server(
            model=model.clone(),
            rng=rng.stream(self.parts.seed, "strategy", round),
            spec=self.parts.data.spec,
            predict=self._predict(integers) if self._answers else None,
            trusted=None if trusted is None else TrustedData(self, trusted, round, model, integers),
            trained=self.parts.layout.trained,
        )

    @cached_property
    def _answers(self) -> bool:
        """Is the whole model here, and does it take rows?"""
        program, spec = self.parts.program, self.parts.data.spec
        whole = all(program.is_shared(name) for name in model_tensors(program.model))
        return whole and spec is not None and spec.task == "rows"

    @cached_property
    def template(self) -> torch.nn.Module:
        """The model, the server's own copy."""
        return copy.deepcopy(self.parts.program.model)

    @cached_property
    def _trusted(self) -> Examples | None:
        trusted = self.parts.data.trusted
        return None if trusted is None else trusted.to(torch.device("cpu"), self.parts.dtype)

    def tensors(self, model: Vector, integers: Tensors) -> Mapping[str, Tensor]:
        """A vector [d] as named tensors."""
        return self.parts.layout.unflatten(model.to(self.parts.dtype), integers)

    def _predict(self, integers: Tensors) -> Predict:
        call = FunctionalModel(self.template)

        def predict(model: Vector, inputs: Tensor) -> Tensor:
            labels = torch.zeros(len(inputs), dtype=torch.int64, device=inputs.device)
            with torch.no_grad(), evaluation_mode(self.template):
                return call(self.tensors(model, integers), Batch(inputs, labels))[0]

        return predict


@dataclass(frozen=True)
class TrustedData:
    """`contracts.Trusted` in one round.

    Attributes:
        side: of the run.
        examples: that the server holds.
        round: counts from 1.
        model: [d], before the round.
        integers: its integer tensors.
    """

    side: ServerSide
    examples: Examples
    round: int
    model: Vector
    integers: Tensors

    def update(self) -> Vector:
        """[d], the client method's own training on the trusted examples; the server is one more client."""
        parts = self.side.parts
        data = ClientData(self.examples, self.examples, self.examples, parts.data.clients[0].spec)
        client = ClientInfo(len(parts.data.clients), data)
        order = TrainOrder(self.round, self.model, self.integers)
        return train_client(parts.plugins.method, client, order, None, parts.seed).update.to(
            self.model.device
        )

    def accuracy(self, model: Vector) -> float:
        """Of a model [d] on the trusted examples."""
        tensors = self.side.tensors(model, self.integers)
        return (
            evaluate(self.side.template, tensors, {"trusted": self.examples})["trusted_accuracy"].mean or 0.0
        )
