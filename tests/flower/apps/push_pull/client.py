from types import SimpleNamespace

from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import message_size_mod

client = ClientApp()


def doubling_mod(message, context, call_next):
    """A mod of the app's own: clients count for twice."""
    reply = call_next(message, context)
    reply.content["metrics"]["num-examples"] *= 2
    return reply


@client.train("custom", mods=[message_size_mod, doubling_mod])
def custom(message: Message, context):
    from task import SIDE, noise, step  # imported late, inside the call

    vector = message.content["model"]["vector"].numpy()
    vector = step(vector, context.node_config["partition-id"]) + noise(
        vector.size, context.run_config["noise"]
    )
    content = {
        "model": ArrayRecord({"vector": Array(vector)}),
        "metrics": MetricRecord({"num-examples": 1, "shared": len(SIDE)}),
    }
    return Message(RecordDict(content), reply_to=message)


application = SimpleNamespace(app=client)
