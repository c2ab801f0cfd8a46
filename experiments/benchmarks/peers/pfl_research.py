"""pfl-research: `FederatedAveraging` on a `SimulatedBackend`, one process, one or two torch threads.

Runs in an environment of its own (pfl 0.6.0 with its `pytorch` extra), so it imports nothing of ours.
"""

import sys
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from peers.conductor import Conductor
from peers.planned import Planned
from peers.torch_networks import network, read, write
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.federated_dataset import FederatedDatasetBase
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.hyperparam.base import NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from torch.nn import functional


class PlannedUsers(FederatedDatasetBase):
    """The plan's cohorts, each user's examples already in the order of its batches."""

    def __init__(self, plan: Planned) -> None:
        super().__init__()
        self.plan, self.number = plan, 0

    def __next__(self) -> Any:
        raise NotImplementedError("Users come in cohorts.")

    def get_cohort(self, cohort_size: int) -> Iterable[Any]:
        self.number += 1
        for place, client in enumerate(self.plan.cohort(self.number)):
            rows = tuple(
                torch.from_numpy(np.ascontiguousarray(one)) for one in self.plan.rows(self.number, place)
            )
            yield PyTorchTensorDataset(rows, user_id=str(client)), 0


class Pause(TrainingProcessCallback):
    """Ends a round's clock, and waits for the next."""

    def __init__(self, conductor: Conductor) -> None:
        self._conductor = conductor

    def after_central_iteration(
        self, aggregate_metrics: Any, model: Any, *, central_iteration: int
    ) -> tuple[bool, Any]:
        self._conductor.round_done()
        return not self._conductor.wants_round(), Metrics()


def main(folder: Path, threads: int) -> None:
    torch.set_num_threads(threads)
    conductor, plan = Conductor(), Planned(folder)
    module: Any = network(plan.known)
    write(module, torch.from_numpy(plan.initial))
    module.loss = lambda x, y: functional.cross_entropy(module(x), y)
    module.metrics = lambda x, y: {"loss": Weighted(float(module.loss(x, y)) * len(y), len(y))}
    conductor.vector = lambda: read(module).numpy()
    model = PyTorchModel(module, torch.optim.SGD, torch.optim.SGD(module.parameters(), lr=1.0))
    users, rounds = PlannedUsers(plan), len(plan.arrays["cohorts"])
    backend = SimulatedBackend(users, users, postprocessors=[WeightByDatapoints()])
    conductor.wants_round()
    partial(FederatedAveraging().run, send_metrics_to_platform=False)(
        NNAlgorithmParams(
            central_num_iterations=rounds,
            evaluation_frequency=rounds + 1,  # only in the first round, which is not timed
            train_cohort_size=len(plan.cohort(1)),
            val_cohort_size=0,
        ),
        backend,
        model,
        NNTrainHyperParams(
            local_batch_size=plan.known["batch"],
            local_num_epochs=1,
            local_learning_rate=plan.known["learning_rate"],
        ),
        callbacks=[Pause(conductor)],
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
