"""The `[engine]` table as far as workers are concerned, and the devices they are given."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

from fedsim.errors import ConfigError

MOST_DEFAULT_WORKERS = 8
WORKER_MEMORY = {"in-process": 100 * 2**20, "ray": 250 * 2**20}
"""Bytes of a worker's own before it trains anything: a forked process, an actor with its imports."""


def usable_cores() -> int:
    """Cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@dataclass(frozen=True, kw_only=True)
class EngineOptions:
    """Who runs the clients.

    Attributes:
        backend: `in-process`: one worker without a deadline is the driver itself, others are processes of
            its own; `ray`: actors, on this machine or on a cluster.
        workers: how many; None: one per usable core, 8 at most. Results never depend on it.
        device: `auto` takes CUDA where there is one; `cuda` deals the cards out in turn.
        gpus_per_worker: share of a card that one worker is given; `auto`: spread evenly, as many on a card as
            its memory was found to hold.
        address: a running Ray cluster to join, such as `auto` or `10.0.0.1:6379`; None: start one.
        deadline: seconds that one worker may take for its share of a round; None: no limit. A client that
            hangs takes it three times: in its chunk, in the chunk's second trial, and alone.
    """

    backend: Literal["in-process", "ray"] = "in-process"
    workers: int | None = None
    device: str = "auto"
    gpus_per_worker: float | Literal["auto"] = "auto"
    address: str | None = None
    deadline: float | None = None

    def __post_init__(self) -> None:
        if self.backend not in ("in-process", "ray"):
            raise ConfigError(f"engine.backend must be 'in-process' or 'ray', found {self.backend!r}.")
        if self.workers is not None and self.workers < 1:
            raise ConfigError(f"engine.workers must be at least 1, found {self.workers}.")
        self._check_device()
        if self.gpus_per_worker != "auto" and not 0 < self.gpus_per_worker <= 1:
            raise ConfigError(
                f"engine.gpus_per_worker must be 'auto' or lie in (0, 1], found {self.gpus_per_worker!r}."
            )
        if self.address is not None and self.backend != "ray":
            raise ConfigError("engine.address joins a Ray cluster: set engine.backend = 'ray' or remove it.")
        if self.deadline is not None and self.deadline <= 0:
            raise ConfigError(f"engine.deadline must be above 0 seconds, found {self.deadline}.")

    @property
    def count(self) -> int:
        """The number of workers, with the default filled in."""
        return self.workers if self.workers is not None else min(usable_cores(), MOST_DEFAULT_WORKERS)

    def _check_device(self) -> None:
        kind, _, index = self.device.partition(":")
        named = kind in ("auto", "cpu", "cuda") and (not index or (kind == "cuda" and index.isdecimal()))
        if not named or self.device.endswith(":"):
            raise ConfigError(
                f"engine.device must be 'auto', 'cpu', 'cuda' or 'cuda:N', found {self.device!r}."
            )
        if self.backend == "ray" and index not in ("", "0"):
            raise ConfigError(f"Ray deals out the cards: engine.device = 'cuda', not {self.device!r}.")


def check_memory(options: EngineOptions, available: int | None) -> None:
    """Refuse more workers than this machine can hold: it would stall for everybody before it failed.

    Args:
        options: with the number of workers.
        available: bytes of free memory, or None where that is not known.

    Raises:
        ConfigError: the workers alone would need more.
    """
    needed = options.count * WORKER_MEMORY[options.backend]
    if options.address is None and available is not None and needed > available:
        raise ConfigError(
            f"engine.workers = {options.count} needs at least {needed / 2**30:.1f} GiB of memory, "
            f"{available / 2**30:.1f} GiB are available: lower engine.workers."
        )


def available_memory() -> int | None:
    """Bytes that new processes may take, as Linux estimates them; None elsewhere."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    found = [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]
    return found[0] if found else None


def resolve_device(options: EngineOptions, cards: int) -> str:
    """`cpu`, `cuda` or `cuda:N`, given how many cards the workers can reach.

    Raises:
        ConfigError: a card was asked for and is not there, or the workers ask for more than there are.
    """
    kind, _, index = options.device.partition(":")
    if kind == "cpu" or (kind == "auto" and cards == 0):
        return "cpu"
    if cards <= int(index or 0):
        raise ConfigError(
            f"engine.device = {options.device!r}, but workers see {cards} CUDA devices: install the driver "
            "and a CUDA build of torch, or set engine.device = 'cpu'."
        )
    if options.gpus_per_worker != "auto":
        _check_share(options.gpus_per_worker, options.count, 1 if index else cards)
    return "cuda" if kind == "auto" else options.device


def _check_share(share: float, workers: int, cards: int) -> None:
    fitting = int(1 / share + 1e-9) * cards  # a worker lives on one card
    if workers > fitting:
        raise ConfigError(
            f"engine.gpus_per_worker = {share} lets {fitting} workers share {cards} CUDA devices, "
            f"but engine.workers is {workers}: lower one of them."
        )


def worker_device(device: str, number: int) -> torch.device:
    """The device of one worker on this machine; `cuda` deals the cards out in turn."""
    if device == "cuda":
        return torch.device("cuda", number % torch.cuda.device_count())
    return torch.device(device)
