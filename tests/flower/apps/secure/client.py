from flwr.client import NumPyClient
from flwr.client.mod import secaggplus_mod
from flwr.clientapp import ClientApp


class Client(NumPyClient):
    def __init__(self, partition):
        self.partition = partition

    def fit(self, parameters, config):
        return [array + self.partition for array in parameters], 1, {}


def client_fn(context):
    return Client(context.node_config["partition-id"]).to_client()


app = ClientApp(client_fn=client_fn, mods=[secaggplus_mod])
