import os
import random

import numpy as np
from flwr.client import NumPyClient
from flwr.clientapp import ClientApp
from flwr.common import ConfigRecord, Context


class Client(NumPyClient):
    def __init__(self, context):
        self.partition = context.node_config["partition-id"]
        self.state, self.fail = context.state, context.run_config["fail"]
        if "rounds" not in self.state.config_records:
            self.state.config_records["rounds"] = ConfigRecord({"count": 0})

    def get_parameters(self, config):
        return [np.full(3, 8.0), np.zeros((), dtype=np.int64)]

    def fit(self, parameters, config):
        if self.fail in ("all", f"raise:{self.partition}"):
            raise RuntimeError(f"partition {self.partition} was told to fail")
        if self.fail == f"die:{self.partition}":
            os._exit(9)
        counts = self.state.config_records["rounds"]
        counts["count"] += 1
        weight, steps = parameters
        if self.fail == f"nan:{self.partition}":
            weight = weight * np.nan
        drawn = random.randrange(8)
        examples = 0 if self.fail in ("empty", f"empty:{self.partition}") else 4
        trained = [weight + 2.0**-self.partition, steps + 1]
        return trained, examples, {"count": counts["count"], "draw": drawn, "partition": self.partition}

    def evaluate(self, parameters, config):
        return float(parameters[0].sum()), 2, {"steps": int(parameters[1])}


def client_fn(context: Context):
    return Client(context).to_client()


def counting_mod(message, context, call_next):
    """Runs around every message, and uses the Context beside the client."""
    seen = context.state.config_records.get("seen", ConfigRecord({"messages": 0}))
    seen["messages"] += 1
    context.state.config_records["seen"] = seen
    reply = call_next(message, context)
    if reply.has_content() and "fitres.metrics" in reply.content.config_records:
        reply.content.config_records["fitres.metrics"]["messages"] = seen["messages"]
    return reply


app = ClientApp(client_fn=client_fn, mods=[counting_mod])
