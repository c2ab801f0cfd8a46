"""One client's local epoch in plain torch, as the loop and Flower's ClientApp run it."""

from typing import Any

import torch
from peers.planned import Planned
from torch import Tensor, nn
from torch.nn import functional


class LocalTraining:
    """Trains clients of a plan, one by one, on one model object."""

    def __init__(self, plan: Planned, model: nn.Module, device: str = "cpu") -> None:
        self.plan, self.model, self.device = plan, model, device
        self._graphs: dict[int, tuple[Tensor, ...]] = {}

    def epoch(self, number: int, place: int) -> int:
        """Train the client at a place of round `number`'s cohort; returns its number of examples."""
        rate = self.plan.known["learning_rate"]
        optimizer = torch.optim.SGD(self.model.parameters(), lr=rate)
        if self.plan.known["spec"]["task"] == "nodes":
            x, y, edges = self._graph(self.plan.cohort(number)[place])
            self._step(optimizer, functional.cross_entropy(self.model(x, edges), y))
            return len(y)
        x, y = (torch.from_numpy(one).to(self.device) for one in self.plan.rows(number, place))
        size = self.plan.known["batch"]
        for own_x, own_y in zip(x.split(size), y.split(size), strict=True):
            self._step(optimizer, functional.cross_entropy(self.model(own_x), own_y))
        return len(y)

    def _step(self, optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    def _graph(self, client: int) -> Any:
        if client not in self._graphs:
            self._graphs[client] = tuple(
                torch.from_numpy(one).to(self.device) for one in self.plan.graph(client)
            )
        return self._graphs[client]
