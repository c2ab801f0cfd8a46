import json
import time
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg

from messageapp.task import initial

app = ServerApp()
EVENTS = []


@app.lifespan()
def lifespan(context):
    EVENTS.append("begin")
    yield
    EVENTS.append("end")


@app.main()
def main(grid, context):
    nodes = list(grid.get_node_ids())
    while len(nodes) < context.run_config["nodes"]:  # Flower's simulation registers them one by one
        time.sleep(0.1)
        nodes = list(grid.get_node_ids())
    told = grid.send_and_receive([Message(RecordDict(), node, "query") for node in nodes])
    partitions = sorted(reply.content["told"]["partition"] for reply in told if reply.has_content())
    word = RecordDict({"word": ConfigRecord({"word": "hello"})})
    for _ in range(2):
        pings = grid.send_and_receive([Message(word, node, "query.ping") for node in nodes])
    counts = [reply.content["pong"]["count"] for reply in pings if reply.has_content()]

    strategy = FedAvg(fraction_train=context.run_config["fraction-train"], min_train_nodes=1)
    arrays = ArrayRecord({key: Array(value) for key, value in initial().items()})
    result = strategy.start(
        grid=grid, initial_arrays=arrays, num_rounds=context.run_config["num-server-rounds"]
    )
    if context.run_config["output"]:
        folder = Path(context.run_config["output"])
        np.savez(folder / "final.npz", **{key: array.numpy() for key, array in result.arrays.items()})
        facts = {"partitions": partitions, "counts": counts, "events": EVENTS}
        (folder / "facts.json").write_text(json.dumps(facts))
