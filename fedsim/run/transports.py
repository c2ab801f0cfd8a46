"""How a run reaches its clients in this process: straight through the engine, or in Flower messages."""

import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from fedsim.config_tables import Engine
from fedsim.engine.card_memory import Weight, fit_cards, weigh
from fedsim.engine.options import EngineOptions
from fedsim.engine.protocols import Task
from fedsim.engine.start import start
from fedsim.federation import Federation, TrainOrder
from fedsim.run.assembly import Parts
from fedsim.run.cohort import draw_cohort
from fedsim.run.engine_federation import EngineFederation, TimedSetup, default_chunk
from fedsim.run.private_store import PrivateStore
from fedsim.run.provenance import tier
from fedsim.run.threads import one_thread
from fedsim.training.handler import TrainingSetup
from fedsim.training.tiers import stacked_chunk

CANDIDATES = ("T1", "T2")


@dataclass(frozen=True)
class LocalTransport:
    """Makes the federation of one seed on this process's own engine.

    Attributes:
        file: the experiment's file; tier T0 hands it to its ClientApps.
        overrides: the file's changes, for the same purpose.
    """

    file: Path
    overrides: tuple[str, ...] = ()

    def __call__(self, parts: Parts, store: PrivateStore) -> Federation:
        """The clients of one run; its `close` ends the workers.

        Raises:
            WorkerError: workers cannot be started.
        """
        if tier(parts) == "T0":
            from fedsim.flower.tier_t0 import local_grid_federation

            options, clients = engine_options(parts.experiment.engine), parts.experiment.federation.clients
            return local_grid_federation(
                options,
                self.file,
                self.overrides,
                clients=clients,
                seed=parts.seed,
                store=store,
                chunk=parts.experiment.engine.chunk or 1,
            )
        return engine_federation(parts, store)


def engine_options(table: Engine) -> EngineOptions:
    """The engine's own part of the `[engine]` table."""
    return EngineOptions(
        backend=table.backend,
        workers=table.workers,
        device=table.device,
        gpus_per_worker=table.gpus_per_worker,
        address=table.address,
        deadline=table.deadline,
    )


def engine_federation(parts: Parts, store: PrivateStore) -> EngineFederation:
    """Tiers T1 and T2: orders go to the engine's workers as they are."""
    chosen, timed = tier(parts), None
    if chosen == "measured":
        timed = {name: seconds_of_round(_federation(parts, store, name), parts) for name in CANDIDATES}
        chosen = min(timed, key=timed.__getitem__)
    return _federation(parts, store, chosen, timed)


def seconds_of_round(federation: EngineFederation, parts: Parts) -> float:
    """Of the training of round 1, on its second trial; nothing of it is kept, and the workers end."""
    table, initial, layout = parts.experiment.federation, parts.initial, parts.layout
    cohort = draw_cohort(parts.seed, 1, table.clients, table.clients_per_round)
    order = TrainOrder(1, layout.flatten(initial), layout.integers_of(initial))
    with closing(federation), one_thread():
        federation.train(order, cohort)
        begun = time.perf_counter()
        federation.train(order, cohort)
        return time.perf_counter() - begun


def _federation(
    parts: Parts, store: PrivateStore, name: str, timed: Mapping[str, float] | None = None
) -> EngineFederation:
    table, stacked = parts.experiment.engine, name == "T2"
    setup = TrainingSetup(
        parts.plugins.method, parts.seed, parts.dtype, stacked=stacked, attack=parts.plugins.attack
    )
    sizes = [len(client.train) for client in parts.data.clients]
    length: Callable[[int], int] | None = None
    if table.chunk is not None:
        length = partial(min, table.chunk)
    elif stacked:
        spec = parts.data.clients[0].spec
        length = partial(stacked_chunk, program=parts.program, spec=spec, sizes=sizes)
    size = parts.layout.size
    clients = (length or partial(default_chunk, work=sum(sizes) / len(sizes) * size))(
        parts.experiment.federation.clients_per_round
    )
    options = fit_cards(
        engine_options(table),
        torch.cuda.device_count(),
        partial(_weight_on_card, parts, setup, clients),
    )
    engine = start(options, TimedSetup(setup), parts.data)
    return EngineFederation(engine, store, sizes, size=size, chunk=length, tier=name, timed=timed)


def _weight_on_card(parts: Parts, setup: TrainingSetup, clients: int) -> Weight:
    """Of the clients with most examples, as many as travel together."""
    sizes, initial, layout = [len(one.train) for one in parts.data.clients], parts.initial, parts.layout
    largest = sorted(range(len(sizes)), key=lambda partition: -sizes[partition])[:clients]
    task = Task(tuple(sorted(largest)), (None,) * len(largest))
    order = TrainOrder(1, layout.flatten(initial), layout.integers_of(initial))
    options = engine_options(parts.experiment.engine)
    return weigh(options, setup, parts.data, broadcast=order, task=task)
