"""GridFederation over the grid of Flower's own simulation, with its node states but without Ray."""

import threading
import uuid
from dataclasses import replace

import pytest
import torch
from flwr.app import Context, Error, Message, RecordDict
from flwr.proto.task_pb2 import Task
from flwr.server.superlink.linkstate import LinkStateFactory
from flwr.server.superlink.linkstate.in_memory_linkstate import InMemoryLinkState, RunRecord
from flwr.supercore.constant import FLWR_IN_MEMORY_DB_NAME, NOOP_FEDERATION_ID
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.supercore.run import Run
from flwr.superlink.federation import NoOpFederationManager
from flwr.superlink.grid import InMemoryGrid

from fedsim.contracts import Failure, LocalUpdate
from fedsim.errors import ConfigError
from fedsim.federation import TrainOrder
from fedsim.flower.client_side import client_app
from fedsim.flower.grid_federation import GridFederation
from fedsim.flower.identity import ensure_identity

CLIENTS = 3


class Doubling:
    """Doubles the model; client 2 fails."""

    def run(self, order, task):
        (partition,) = task.items
        if partition == 2:
            raise RuntimeError("no data")
        zero = {"examples": 1, "steps": 1, "uplink": {}, "metrics": {}, "private": {}}
        return [LocalUpdate(partition=partition, update=order.vector * 2, integers={}, **zero)]


class Nodes:
    """Simulated SuperNodes: a thread takes messages out of Flower's state and puts replies in."""

    def __init__(self, state, clients, app):
        self.state, self.app, self.done = state, app, threading.Event()
        self.contexts = {}
        for partition in range(clients):
            node = state.create_node("aid", "account", uuid.uuid4().bytes, heartbeat_interval=1e300)
            state.acknowledge_node_heartbeat(node, 1e300)
            config = {"partition-id": partition, "num-partitions": clients}
            self.contexts[node] = Context(1, node, config, RecordDict(), {})
        self.thread = threading.Thread(target=self._serve)
        self.thread.start()

    def _serve(self):
        while not self.done.wait(0.005):
            for node, context in self.contexts.items():
                for message in self.state.get_message_ins(node_id=node, limit=1):
                    try:
                        reply = self.app(message, context)
                    except Exception as error:
                        reply = Message(Error(2, str(error)), reply_to=message)
                    reply.metadata.__dict__["_message_id"] = str(uuid.uuid4())
                    self.state.store_message_res(reply)

    def close(self):
        self.done.set()
        self.thread.join()


@pytest.fixture
def grid_of():
    opened = []

    def make(clients):
        ensure_identity()
        factory = LinkStateFactory(FLWR_IN_MEMORY_DB_NAME, NoOpFederationManager(), ObjectStoreFactory())
        state = factory.state()
        assert isinstance(state, InMemoryLinkState)
        run = replace(Run.create_empty(run_id=1), federation_id=NOOP_FEDERATION_ID, primary_task_id=1)
        state.run_ids[1] = RunRecord(run=run)
        state.task_store[1] = Task(task_id=1, run_id=1)
        opened.append(Nodes(state, clients, client_app(lambda context, seed: Doubling())))
        grid = InMemoryGrid(factory, pull_interval=0.01)
        grid.set_run(run)
        return grid

    yield make
    for nodes in opened:
        nodes.close()


def test_rounds_run_over_flowers_own_grid(grid_of):
    federation = GridFederation(grid_of(CLIENTS), CLIENTS, seed=1, patience=20)
    for number in (1, 2):
        order = TrainOrder(number, torch.arange(4.0), {})
        results = federation.train(order, [2, 1, 0])
        assert isinstance(results[0], Failure)
        assert results[0].message == "RuntimeError: no data"
        assert [result.partition for result in results] == [2, 1, 0]
        assert results[1].update.tolist() == [0.0, 2.0, 4.0, 6.0]
        federation.commit([1, 0])


def test_a_federation_of_another_size_is_refused(grid_of):
    with pytest.raises(ConfigError, match=r"has 5 clients, but this federation has 3 SuperNodes"):
        GridFederation(grid_of(CLIENTS), 5, seed=1, patience=20)
