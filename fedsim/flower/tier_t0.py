"""Tier T0 of `fedsim run`: our own ClientApp, message by message, on the engine's workers."""

import shlex
from collections.abc import Sequence
from pathlib import Path

from fedsim.engine.options import EngineOptions
from fedsim.engine.start import start
from fedsim.federation import Federation
from fedsim.flower.client_handler import ClientAppSetup
from fedsim.flower.grid import EngineGrid, run_id
from fedsim.flower.grid_federation import GridFederation
from fedsim.flower.private_places import InStore
from fedsim.run.private_store import PrivateStore


def local_grid_federation(
    options: EngineOptions,
    file: Path,
    overrides: Sequence[str],
    *,
    clients: int,
    seed: int,
    store: PrivateStore,
    chunk: int = 1,
) -> Federation:
    """One seed's clients behind an `EngineGrid`; its `close` ends the workers.

    Args:
        options: of the engine.
        file: the experiment; every worker reads it, as SuperNodes do.
        overrides: its `key.path=value` changes.
        clients: partitions.
        seed: of the run.
        store: of the clients' private tensors.
        chunk: clients per task of the engine.

    Raises:
        WorkerError: workers cannot be started.
    """
    setup = ClientAppSetup(
        reference="fedsim.flower.client_app:app",
        directory=None,
        seed=seed,
        clients=clients,
        run_id=run_id(seed),
        run_config={"experiment": str(file.resolve()), "overrides": shlex.join(overrides)},
    )
    engine = start(options, setup, None)
    try:
        grid = EngineGrid(engine, clients=clients, seed=seed, chunk=chunk)
        private = InStore(store, grid, seed)
        return GridFederation(grid, clients, seed, private=private, release=engine.close)
    except BaseException:
        engine.close()
        raise
