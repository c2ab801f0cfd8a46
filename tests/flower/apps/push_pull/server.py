import time
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, Message, RecordDict
from flwr.serverapp import ServerApp
from task import SIDE, cohort

app = ServerApp()


@app.main()
def main(grid, context):
    SIDE.append("server")
    vector, shared = np.zeros(3), []
    for _ in range(context.run_config["rounds"]):
        size = context.run_config["cohort"]
        while len(list(grid.get_node_ids())) < size:  # Flower's simulation registers them one by one
            time.sleep(0.1)
        nodes = cohort(list(grid.get_node_ids()), size)
        content = RecordDict({"model": ArrayRecord({"vector": Array(vector)})})
        ids = set(grid.push_messages([Message(content, node, "train.custom") for node in nodes]))
        vectors, weights = [], []
        while ids:
            replies = grid.pull_messages(ids)
            for reply in replies:
                ids.discard(reply.metadata.reply_to_message_id)
                vectors.append(reply.content["model"]["vector"].numpy())
                weights.append(reply.content["metrics"]["num-examples"])
                shared.append(reply.content["metrics"]["shared"])
            if ids:
                time.sleep(0.1)
        assert weights == [2] * len(nodes)
        vector = np.sum(vectors, axis=0)
    if context.run_config["output"]:
        np.savez(Path(context.run_config["output"]) / "final.npz", vector=vector, shared=shared)
