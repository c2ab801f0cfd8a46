import os
import random

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from messageapp.task import OPENED, local_step

app = ClientApp()


@app.lifespan()
def lifespan(context):
    OPENED.append(context.node_config["partition-id"])
    yield
    OPENED.pop()


def fail_as_told(message, context):
    """run_config "fail": none, all, nan:P, empty:P, raise:P, die:P for partition P."""
    how, _, who = str(context.run_config["fail"]).partition(":")
    if how == "all" or (how == "raise" and int(who) == context.node_config["partition-id"]):
        raise RuntimeError(f"partition {context.node_config['partition-id']} was told to fail")
    if how == "die" and int(who) == context.node_config["partition-id"]:
        os._exit(7)
    return how if who and int(who) == context.node_config["partition-id"] else ""


@app.train()
def train(message: Message, context):
    how = fail_as_told(message, context)
    arrays = {key: array.numpy() for key, array in message.content["arrays"].items()}
    rate = context.run_config["optimizer.learning-rate"]
    trained = local_step(arrays, context.node_config["partition-id"], rate)
    if how == "nan":
        trained["weight"] = trained["weight"] * np.nan
    count = 0 if how in ("empty", "allempty") or context.run_config["fail"] == "allempty" else 4
    record = ArrayRecord({key: Array(np.asarray(value)) for key, value in trained.items()})
    draw = random.random() + np.random.rand()  # noqa: NPY002
    metrics = MetricRecord({"num-examples": count, "draw": draw})
    return Message(RecordDict({"arrays": record, "metrics": metrics}), reply_to=message)


@app.evaluate()
def evaluate(message: Message, context):
    fail_as_told(message, context)
    total = float(message.content["arrays"]["weight"].numpy().sum())
    return Message(
        RecordDict({"metrics": MetricRecord({"num-examples": 2, "total": total})}), reply_to=message
    )


@app.query()
def tell(message: Message, context):
    told = ConfigRecord({"partition": context.node_config["partition-id"], "open": len(OPENED)})
    return Message(RecordDict({"told": told}), reply_to=message)


@app.query("ping")
def ping(message: Message, context):
    count = context.state.config_records.get("pings", ConfigRecord({"count": 0}))["count"] + 1
    context.state["pings"] = ConfigRecord({"count": count})
    word = message.content["word"]["word"]
    return Message(RecordDict({"pong": ConfigRecord({"word": word, "count": count})}), reply_to=message)
