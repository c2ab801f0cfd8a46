"""An ordinary Flower app on a plan: FedAvg, and a ClientApp that trains the client it is told to.

Flower draws its own cohorts by node; here a message says which client of the plan it stands for, so
that all systems train the same ones. Nothing else departs from Flower's quickstart.
"""

import os
from collections import OrderedDict
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg
from peers.local_training import LocalTraining
from peers.planned import Planned
from peers.torch_networks import network, write

FOLDER = "BENCHMARK_PLAN"  # environment variable: the plan's folder, for the clients' processes

client_app = ClientApp()


@cache
def _training() -> LocalTraining:
    torch.set_num_threads(1)
    plan = Planned(Path(os.environ[FOLDER]))
    return LocalTraining(plan, network(plan.known))


@client_app.train()
def train(message: Message, context: Context) -> Message:
    training, config = _training(), message.content["config"]
    training.model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    count = training.epoch(config["server-round"], config["place"])
    metrics = MetricRecord({"num-examples": count})
    content = {"arrays": ArrayRecord(training.model.state_dict()), "metrics": metrics}
    return Message(content=RecordDict(content), reply_to=message)


class PlannedFedAvg(FedAvg):
    """FedAvg whose messages name the clients of the plan."""

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        messages = list(super().configure_train(server_round, arrays, config, grid))
        for place, message in enumerate(messages):
            own = ConfigRecord({"server-round": server_round, "place": place})
            message.content = RecordDict({"arrays": arrays, "config": own})
        return messages


class Rounds:
    """The server's side of the app, a round at a time."""

    def __init__(self, plan: Planned) -> None:
        clients, cohort = plan.known["clients"], len(plan.cohort(1))
        self.strategy = PlannedFedAvg(
            fraction_train=cohort / clients + 1e-9,  # Flower rounds down
            fraction_evaluate=0.0,
            min_train_nodes=cohort,
            min_available_nodes=clients,
        )
        model = network(plan.known)
        write(model, torch.from_numpy(plan.initial))
        self.arrays, self.number = ArrayRecord(OrderedDict(model.state_dict())), 0

    def play(self, grid: Grid) -> None:
        """One round as `FedAvg.start` plays it, without its log lines.

        Raises:
            RuntimeError: a client failed.
        """
        self.number += 1
        messages = self.strategy.configure_train(self.number, self.arrays, ConfigRecord(), grid)
        replies = list(grid.send_and_receive(messages, timeout=3600))
        errors = [reply.error.reason for reply in replies if reply.has_error()]
        arrays, _ = self.strategy.aggregate_train(self.number, replies)
        if errors or arrays is None:
            raise RuntimeError(f"Flower's clients failed: {errors[:1]}")
        self.arrays = arrays

    def vector(self) -> torch.Tensor:
        """[d], the model."""
        state = self.arrays.to_torch_state_dict()
        return torch.cat([value.reshape(-1) for value in state.values()])
