import json
from pathlib import Path

import numpy as np
from flwr.common import ndarrays_to_parameters, parameters_to_ndarrays
from flwr.server import ServerAppComponents, ServerConfig
from flwr.server.strategy import FedAvg
from flwr.serverapp import ServerApp


class Recording(FedAvg):
    """FedAvg that writes down what it saw."""

    def __init__(self, output, **options):
        super().__init__(**options)
        self.output, self.log = output, []

    def aggregate_fit(self, server_round, results, failures):
        rows = [dict(res.metrics) for _, res in results]
        self.log.append({"round": server_round, "replies": rows, "failures": [str(f) for f in failures]})
        parameters, metrics = super().aggregate_fit(server_round, results, failures)
        if self.output:
            (Path(self.output) / "log.json").write_text(json.dumps(self.log))
            if parameters is not None:
                arrays = parameters_to_ndarrays(parameters)
                np.savez(Path(self.output) / "final.npz", **{str(i): a for i, a in enumerate(arrays)})
        return parameters, metrics


def server_fn(context):
    config = context.run_config
    start = [np.full(3, 8.0), np.zeros((), dtype=np.int64)]
    strategy = Recording(
        config["output"],
        fraction_fit=config["fraction-fit"],
        min_fit_clients=1,
        min_evaluate_clients=1,
        min_available_clients=config["min-available"],
        initial_parameters=None if config["initial-from-client"] else ndarrays_to_parameters(start),
    )
    rounds = ServerConfig(num_rounds=config["num-server-rounds"])
    return ServerAppComponents(strategy=strategy, config=rounds)


app = ServerApp(server_fn=server_fn)
