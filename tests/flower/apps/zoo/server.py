import flwr.serverapp.strategy as strategies
import numpy as np
from flwr.app import Array, ArrayRecord
from flwr.serverapp import ServerApp

app = ServerApp()
OPTIONS = {
    "Krum": {"num_malicious_nodes": 1},
    "MultiKrum": {"num_malicious_nodes": 1, "num_nodes_to_select": 3},
    "Bulyan": {"num_malicious_nodes": 1},
    "QFedAvg": {"client_learning_rate": 0.1},
    "FedProx": {"proximal_mu": 0.1},
}


def make(name):
    if not name.startswith("DifferentialPrivacy"):
        return getattr(strategies, name)(**OPTIONS.get(name, {}))
    options = {"noise_multiplier": 0.1, "num_sampled_clients": 8}
    options |= {"clipping_norm": 1.0} if "Fixed" in name else {}
    return getattr(strategies, name)(strategies.FedAvg(), **options)


@app.main()
def main(grid, context):
    arrays = {"w": Array(np.ones((4, 3), np.float32)), "b": Array(np.zeros(3, np.float32))}
    make(context.run_config["strategy"]).start(grid=grid, initial_arrays=ArrayRecord(arrays), num_rounds=2)
