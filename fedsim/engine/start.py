"""From options to a running engine."""

from typing import Any

import torch

from fedsim.engine.in_process import DriverEngine
from fedsim.engine.options import (
    EngineOptions,
    available_memory,
    check_memory,
    resolve_device,
    worker_device,
)
from fedsim.engine.pooled import PooledEngine
from fedsim.engine.protocols import Setup
from fedsim.engine.spawned import SpawnedCrew


def start(options: EngineOptions, setup: Setup, data: Any) -> DriverEngine | PooledEngine:
    """Start the workers; each calls `setup(data, place)` once.

    Args:
        options: which workers, and how many.
        setup: picklable unless the driver is the only worker; scripts and notebooks may define it.
        data: held once per machine; clients must not write to it.

    Raises:
        ConfigError: no such device, or more workers than the machine's memory holds.
        WorkerError: workers cannot be started, or the set-up raised.
    """
    check_memory(options, available_memory())
    if options.backend == "ray":
        from fedsim.engine.ray_backend import RayCrew

        return PooledEngine(RayCrew(setup, data, options), options.count, options.deadline)
    device = resolve_device(options, torch.cuda.device_count())
    if options.count == 1 and options.deadline is None:
        return DriverEngine(setup, data, worker_device(device, 0))
    return PooledEngine(SpawnedCrew(setup, data, device), options.count, options.deadline)
