import numpy as np
from flwr.common import ndarrays_to_parameters
from flwr.server import LegacyContext, ServerConfig
from flwr.server.strategy import FedAvg
from flwr.server.workflow import DefaultWorkflow, SecAggPlusWorkflow
from flwr.serverapp import ServerApp

app = ServerApp()


@app.main()
def main(grid, context):
    initial = ndarrays_to_parameters([np.zeros(4), np.ones((2, 2))])
    strategy = FedAvg(min_available_clients=5, fraction_evaluate=0.0, initial_parameters=initial)
    legacy = LegacyContext(context=context, config=ServerConfig(num_rounds=2), strategy=strategy)
    workflow = SecAggPlusWorkflow(num_shares=3, reconstruction_threshold=2, timeout=60.0)
    DefaultWorkflow(fit_workflow=workflow)(grid, legacy)
