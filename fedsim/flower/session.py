"""A grid together with the workers behind it."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from flwr.supercore.run import Run

from fedsim.engine.options import EngineOptions, resolve_device
from fedsim.engine.pooled import PooledEngine
from fedsim.engine.protocols import Engine
from fedsim.engine.spawned import SpawnedCrew
from fedsim.engine.start import start
from fedsim.flower.client_handler import ClientAppSetup
from fedsim.flower.grid import EngineGrid


@contextmanager
def open_grid(
    options: EngineOptions, setup: ClientAppSetup, run: Run | None = None, *, apart: bool = False
) -> Iterator[EngineGrid]:
    """A grid whose workers run the set-up's ClientApp; they end with the scope.

    Args:
        options: of the engine.
        setup: which ClientApp, for how many clients.
        run: as the ServerApp sees it; None: an empty one.
        apart: a process of its own even for a single worker, so that a client that ends its process does
            not end this one.

    Raises:
        WorkerError: a worker cannot be started, or cannot load the ClientApp.
    """
    engine = _alone(options, setup) if apart else start(options, setup, None)
    try:
        yield EngineGrid(engine, clients=setup.clients, seed=setup.seed, run=run)
    finally:
        engine.close()


def _alone(options: EngineOptions, setup: ClientAppSetup) -> Engine:
    if options.backend != "in-process" or options.count > 1:
        return start(options, setup, None)
    device = resolve_device(options, torch.cuda.device_count())
    return PooledEngine(SpawnedCrew(setup, None, device), 1, options.deadline)
