"""Runs somebody else's Flower app, unmodified, on our engine: `fedsim app PATH`.

The ServerApp runs in this process, each call of the ClientApp in a worker; both see the app's directory
first on their import path, its run configuration, a Context, and global random generators that depend on
the seed alone. Client code is imported here once, to find mistakes before anything starts, but not called
here unless asked, so that a client that ends its process ends nothing else.
"""

import logging
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from flwr.app import Context, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.constant import SUPERLINK_NODE_ID
from flwr.serverapp import ServerApp
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

from fedsim.engine.options import EngineOptions
from fedsim.errors import ConfigError, FedsimError
from fedsim.flower.client_handler import ClientAppSetup
from fedsim.flower.foreign.description import DEFAULT_CLIENTS, AppDescription, describe
from fedsim.flower.foreign.legacy import one_call_per_round
from fedsim.flower.foreign.loading import load_component
from fedsim.flower.foreign.modules import AppModules
from fedsim.flower.foreign.observed import Observation, observed
from fedsim.flower.foreign.patch import replaced
from fedsim.flower.foreign.result import NOTHING_SENT, AppResult
from fedsim.flower.grid import EngineGrid, run_id
from fedsim.flower.heap import frozen_heap
from fedsim.flower.session import open_grid
from fedsim.kept_process import kept_process
from fedsim.rng import derive, seeded_globals

_log = logging.getLogger("fedsim")


@dataclass(frozen=True)
class _Trouble:
    """The ServerApp's own failure."""

    error: str = ""
    traceback: str = ""


def run_app(
    path: Path,
    *,
    clients: int | None = None,
    seed: int = 0,
    engine: EngineOptions | None = None,
    overrides: Sequence[str] = (),
    max_failed_fraction: float = 0.0,
    apart: bool = True,
) -> AppResult:
    """Run a Flower app's directory to its end.

    Args:
        path: of the directory that holds the app's `pyproject.toml`.
        clients: number of nodes; None: what the app's default federation declares, else 10.
        seed: of everything that the run draws.
        engine: who runs the clients.
        overrides: as `flwr run --run-config` takes them.
        max_failed_fraction: of the messages of one type in one round that may fail before the run counts
            as failed.
        apart: a single in-process worker is a process of its own too. Without it clients run in this
            process: quicker to start and open to a debugger, but one that dies takes the run along.

    Raises:
        ConfigError: there is no such app, it cannot be imported, or an argument is out of range.
        WorkerError: the engine cannot start its workers, or they keep dying.
    """
    options, app = engine or EngineOptions(), describe(path, overrides)
    count = _count(clients, app)
    if not 0 <= max_failed_fraction <= 1:
        raise ConfigError(f"max_failed_fraction should lie in [0, 1], found {max_failed_fraction}.")
    began, modules, run = time.monotonic(), AppModules(app.directory), _run(app, seed)
    with modules.active(), _as_server(run):
        with seeded_globals(derive(seed, "server-app-import")):
            server_app = load_component(modules, app, "serverapp", app.server, ServerApp)
        setup = _checked_setup(app, seed, count)
        with open_grid(options, setup, run, apart=apart) as grid:
            context = Context(run.run_id, SUPERLINK_NODE_ID, {}, RecordDict(), dict(app.run_config))
            with seeded_globals(derive(seed, "server-app")):  # starting the workers may have drawn
                seen, trouble = _serve(server_app, grid, context)
    return _result(app, grid, seen, trouble, setup, options.count, max_failed_fraction, began)


def _count(clients: int | None, app: AppDescription) -> int:
    if clients is not None and clients < 1:
        raise ConfigError(f"--clients should be at least 1, found {clients}.")
    return clients or app.clients or DEFAULT_CLIENTS


def _run(app: AppDescription, seed: int) -> Run:
    run = Run.create_empty(run_id=run_id(seed))
    run.fab_id, run.fab_version = f"{app.publisher}/{app.name}", app.version
    run.override_config = dict(app.overrides)
    return run


@contextmanager
def _as_server(run: Run) -> Iterator[None]:
    """Messages made in this scope come from the run's ServerApp."""
    with ExitStack() as stack:
        identity = {"_task_id": 1, "_run_id": run.run_id, "_node_id": SUPERLINK_NODE_ID}
        for name, value in identity.items():
            stack.enter_context(replaced(TaskIdentity, name, value))
        yield


def _checked_setup(app: AppDescription, seed: int, clients: int) -> ClientAppSetup:
    """The workers' set-up, after its ClientApp was imported once in modules that are then forgotten."""
    modules = AppModules(app.directory)
    with modules.active(), seeded_globals(derive(seed, "client-app-import")):
        load_component(modules, app, "clientapp", app.client, ClientApp)
    return ClientAppSetup(
        reference=app.client,
        directory=str(app.directory),
        seed=seed,
        clients=clients,
        run_id=run_id(seed),
        run_config=app.run_config,
    )


def _serve(server_app: ServerApp, grid: EngineGrid, context: Context) -> tuple[Observation, _Trouble]:
    """Run the ServerApp; whatever it raises is its failure, not ours."""
    with observed(grid) as seen, one_call_per_round(grid):
        try:
            with kept_process(), frozen_heap():
                server_app(grid=grid, context=context)
        except SystemExit as error:
            if error.code in (None, 0):
                return seen, _Trouble()
            return seen, _Trouble(f"The ServerApp ended itself with code {error.code}.")
        except FedsimError as error:
            return seen, _Trouble(str(error))
        except Exception as error:  # the boundary: foreign code
            line = "".join(traceback.format_exception_only(error)).strip().splitlines()[-1]
            return seen, _Trouble(f"The ServerApp raised {line}", traceback.format_exc())
    return seen, _Trouble()


def _result(
    app: AppDescription,
    grid: EngineGrid,
    seen: Observation,
    trouble: _Trouble,
    setup: ClientAppSetup,
    workers: int,
    max_failed_fraction: float,
    began: float,
) -> AppResult:
    ledger = grid.ledger
    error = trouble.error or ledger.verdict(max_failed_fraction)
    notes = tuple(ledger.notes) if ledger.messages else (*ledger.notes, NOTHING_SENT)
    return AppResult(
        app=f"{app.publisher}/{app.name} {app.version}",
        status="failed" if error else "completed" if ledger.messages else "no messages",
        error=error,
        traceback=trouble.traceback,
        clients=setup.clients,
        seed=setup.seed,
        workers=workers,
        messages=ledger.messages,
        failures=tuple(ledger.failures),
        notes=notes,
        incidents=tuple(grid.take_incidents()),
        strategy=seen.strategy,
        arrays=seen.numpy(),
        metrics=seen.metrics(),
        seconds=time.monotonic() - began,
    )
