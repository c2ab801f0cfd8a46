"""Runs a Flower app's directory with Flower's own loop: `python run_in_flower.py APP CLIENTS KEY=VALUE ...`.

State store, message queues, grid and polling are Flower's simulation; only its Ray actors are replaced by
calls in its worker threads, so that the reference takes seconds.
"""

import sys
import threading
from pathlib import Path
from queue import Queue

from flwr.app import Context, RecordDict
from flwr.clientapp.client_app import LoadClientAppError
from flwr.common.config import get_fused_config_from_dir, get_project_config, parse_config_args
from flwr.proto.task_pb2 import Task
from flwr.server.superlink.fleet.vce import vce_api
from flwr.server.superlink.fleet.vce.backend.backend import Backend
from flwr.server.superlink.fleet.vce.metrics import VceMetrics
from flwr.server.superlink.linkstate import LinkStateFactory
from flwr.server.superlink.linkstate.in_memory_linkstate import RunRecord
from flwr.simulation.run_simulation import run_serverapp_th
from flwr.supercore.constant import FLWR_IN_MEMORY_DB_NAME, NOOP_FEDERATION_ID
from flwr.supercore.object_ref import load_app
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.federation import NoOpFederationManager
from flwr.superlink.grid import InMemoryGrid


class DirectBackend(Backend):
    num_workers = 1

    def build(self, app_fn):
        self.app = app_fn()

    def is_worker_idle(self):
        return True

    def terminate(self):
        pass

    def process_message(self, message, context):
        return self.app(message, context), context


def main(app_dir, clients, overrides):
    run = Run.create_empty(run_id=77)
    run.primary_task_id, run.federation_id = 1, NOOP_FEDERATION_ID
    run.override_config = parse_config_args(overrides)
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, run.run_id, 1
    components = get_project_config(app_dir)["tool"]["flwr"]["app"]["components"]
    factory = LinkStateFactory(FLWR_IN_MEMORY_DB_NAME, NoOpFederationManager(), ObjectStoreFactory())
    factory.state().run_ids[run.run_id] = RunRecord(run=run)
    factory.state().task_store[1] = Task(task_id=1, run_id=run.run_id)
    grid = InMemoryGrid(state_factory=factory)
    grid.set_run(run)
    nodes = vce_api._register_nodes(clients, factory)
    stores = vce_api._register_node_info_stores(nodes, run, str(app_dir))
    stop, errors = threading.Event(), Queue()
    config = get_fused_config_from_dir(app_dir, run.override_config)
    context = Context(run.run_id, 1, {}, RecordDict(), config)
    client = load_app(components["clientapp"], LoadClientAppError, app_dir)
    arguments = (components["serverapp"], None, context, grid, str(app_dir), stop, errors, False, Queue())
    thread = run_serverapp_th(*arguments)
    backend = DirectBackend({})
    vce_api.run_api(lambda: client, lambda: backend, nodes, factory, stores, stop, VceMetrics())
    thread.join()
    if not errors.empty():
        raise errors.get()


if __name__ == "__main__":
    main(Path(sys.argv[1]).absolute(), int(sys.argv[2]), sys.argv[3:])
