import numpy as np
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp, mod

app = ClientApp()


def chosen(message, context, call_next):
    name = context.run_config["mod"]
    return getattr(mod, name)(message, context, call_next) if name else call_next(message, context)


@app.train(mods=[chosen])
def train(message, context):
    arrays = {key: array.numpy() for key, array in message.content["arrays"].items()}
    moved = {
        key: Array(np.asarray(a + 0.1 * np.random.randn(*a.shape).astype(a.dtype)))  # noqa: NPY002
        for key, a in arrays.items()
    }
    metrics = MetricRecord({"num-examples": context.node_config["partition-id"] + 1, "train_loss": 0.5})
    return Message(RecordDict({"arrays": ArrayRecord(moved), "metrics": metrics}), reply_to=message)


@app.evaluate()
def evaluate(message, context):
    metrics = MetricRecord({"num-examples": 2, "loss": 0.25})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)
