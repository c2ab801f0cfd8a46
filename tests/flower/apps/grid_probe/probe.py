"""A ClientApp that does what its message's `orders` say, for the partitions that they list."""

import random
import sys
import time

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()


def told(message, context, order):
    orders = message.content.config_records.get("orders", {})
    return context.node_config["partition-id"] in orders.get(order, [])


def answer(message, context):
    if told(message, context, "raise"):
        raise ValueError("told to raise")
    if told(message, context, "exit"):
        sys.exit(3)
    if told(message, context, "sleep"):
        time.sleep(0.4)
    if told(message, context, "error"):
        return Message(Error(77, "not today"), reply_to=message)
    if told(message, context, "none"):
        return None
    if told(message, context, "unrelated"):
        return Message(RecordDict(), reply_to=Message(Error(1), reply_to=message))
    if told(message, context, "config"):
        context.run_config["new"] = 1
    count = context.state.config_records.get("seen", ConfigRecord({"count": 0}))["count"] + 1
    context.state["seen"] = ConfigRecord({"count": count})
    who = ConfigRecord(
        {
            "partition": context.node_config["partition-id"],
            "count": count,
            "run": context.run_id,
            "greeting": context.run_config["greeting"],
            "keys": len(message.content),
            "draw": random.random() + np.random.rand() + float(torch.rand(())),  # noqa: NPY002
            "rate": message.content.config_records.get("config", {}).get("rate", -1.0),
        }
    )
    arrays = {
        key: array.numpy()
        for record in message.content.array_records.values()
        for key, array in record.items()
    }
    if told(message, context, "nan"):
        arrays = {"w": np.array([1.0, np.nan])}
    if told(message, context, "infinite"):
        arrays = {"w": np.array([-np.inf], dtype=np.float32)}
    if told(message, context, "vandal"):
        message.content["orders"]["vandal"].clear()
        message.content["new"] = ConfigRecord()
        del message.content["arrays"]
    examples = 0 if told(message, context, "empty") else 5
    content = {
        "who": who,
        "arrays": ArrayRecord({key: Array(np.asarray(value)) for key, value in arrays.items()}),
        "metrics": MetricRecord({"num-examples": examples}),
    }
    return Message(RecordDict(content), reply_to=message)


@app.query("named")
def named(message, context):
    return answer(message, context)


@app.query("echo")
def echo(message, context):
    return Message(message.content, reply_to=message)


@app.train()
def train(message, context):
    return answer(message, context)


@app.train("named")
def train_named(message, context):
    return answer(message, context)


@app.evaluate()
def evaluate(message, context):
    return answer(message, context)
