"""A grid together with the workers behind it."""

from collections.abc import Iterator
from contextlib import contextmanager

from flwr.supercore.run import Run

from fedsim.engine.options import EngineOptions
from fedsim.engine.start import start
from fedsim.flower.client_handler import ClientAppSetup
from fedsim.flower.grid import EngineGrid


@contextmanager
def open_grid(options: EngineOptions, setup: ClientAppSetup, run: Run | None = None) -> Iterator[EngineGrid]:
    """A grid whose workers run the set-up's ClientApp; they end with the scope.

    Raises:
        ConfigError: the set-up names no ClientApp.
        WorkerError: a worker cannot be started.
    """
    engine = start(options, setup, None)
    try:
        yield EngineGrid(engine, clients=setup.clients, seed=setup.seed, run=run)
    finally:
        engine.close()
