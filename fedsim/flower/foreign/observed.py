"""What a foreign ServerApp's strategies compute, seen from outside, and what they may not wait for.

Inside `observed` a strategy of the message API returns its `Result` to the app as ever, and it is kept here
too; likewise the final parameters of the older loop and of `DefaultWorkflow`. A time-out of one hour per
round that the app did not ask for is no time-out at all, and waiting for more nodes than there are is an
error.
"""

import inspect
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import flwr.server.compat.app as compat_app
import numpy as np
from flwr.app import ArrayRecord, RecordDict
from flwr.compat.common.recorddict_compat import parameters_to_arrayrecord
from flwr.server.compat import LegacyContext
from flwr.server.history import History
from flwr.server.server import Server, run_fl
from flwr.server.workflow import DefaultWorkflow
from flwr.server.workflow.constant import MAIN_PARAMS_RECORD
from flwr.serverapp.strategy import Result, Strategy, strategy_utils
from numpy.typing import NDArray

from fedsim.errors import RoundError
from fedsim.flower.foreign.patch import replaced
from fedsim.flower.grid import EngineGrid


@dataclass
class Observation:
    """The last outcome of a strategy.

    Attributes:
        strategy: its class, or "" where none was run.
        arrays: its final model, or None.
        result: the message API's Result, or the older loop's History.
    """

    strategy: str = ""
    arrays: ArrayRecord | None = None
    result: Result | History | None = None

    def numpy(self) -> Mapping[str, NDArray[Any]] | None:
        """The final model as NumPy arrays."""
        if self.arrays is None:
            return None
        return {key: np.asarray(array.numpy()) for key, array in self.arrays.items()}

    def metrics(self) -> dict[str, dict[int, Any]]:
        """What the strategy measured, by origin and round; origins without a value are left out."""
        if isinstance(self.result, Result):
            origins = {
                "train (clients)": self.result.train_metrics_clientapp,
                "evaluate (clients)": self.result.evaluate_metrics_clientapp,
                "evaluate (server)": self.result.evaluate_metrics_serverapp,
            }
            return {
                name: {r: dict(m) for r, m in rounds.items()} for name, rounds in origins.items() if rounds
            }
        return {} if self.result is None else _history_metrics(self.result)


@contextmanager
def observed(grid: EngineGrid) -> Iterator[Observation]:
    """Keep what strategies compute inside this scope."""
    seen = Observation()
    with ExitStack() as stack:
        stack.enter_context(replaced(Strategy, "start", _watched_start(Strategy.start, grid, seen)))
        stack.enter_context(replaced(compat_app, "run_fl", _watched_loop(run_fl, grid, seen)))
        workflow = _watched_workflow(DefaultWorkflow.__call__, grid, seen)
        stack.enter_context(replaced(DefaultWorkflow, "__call__", workflow))
        stack.enter_context(replaced(strategy_utils, "sleep", _refuse_to_wait(grid)))
        yield seen


def _watched_start(start: Any, grid: EngineGrid, seen: Observation) -> Any:
    signature = inspect.signature(start)

    def watched(*args: Any, **options: Any) -> Result:
        call = signature.bind(*args, **options)
        call.arguments.setdefault("timeout", None)
        strategy = call.arguments["self"]
        name = getattr(strategy, "arrayrecord_key", "arrays")
        evaluate = call.arguments.get("evaluate_fn")
        if evaluate is not None:
            call.arguments["evaluate_fn"] = lambda r, arrays: evaluate(r, _restored(grid, name, arrays))
        seen.strategy = grid.rule = type(strategy).__name__
        result: Result = start(*call.args, **call.kwargs)
        result.arrays = _restored(grid, name, result.arrays)
        seen.result, seen.arrays = result, result.arrays if len(result.arrays) else None
        return result

    return watched


def _watched_loop(run: Any, grid: EngineGrid, seen: Observation) -> Any:
    def watched(server: Server, config: Any) -> History:
        seen.strategy = grid.rule = type(server.strategy).__name__
        history: History = run(server, config)
        arrays = parameters_to_arrayrecord(server.parameters, keep_input=True)
        seen.result, seen.arrays = history, _restored(grid, "parameters", arrays)
        return history

    return watched


def _watched_workflow(run: Any, grid: EngineGrid, seen: Observation) -> Any:
    def watched(workflow: DefaultWorkflow, grid_given: Any, context: LegacyContext) -> None:
        seen.strategy = grid.rule = type(context.strategy).__name__
        run(workflow, grid_given, context)
        arrays = context.state.array_records[MAIN_PARAMS_RECORD]
        seen.result, seen.arrays = context.history, _restored(grid, "parameters", arrays)

    return watched


def _restored(grid: EngineGrid, name: str, arrays: ArrayRecord) -> ArrayRecord:
    return grid.restored([RecordDict({name: arrays})])[0].array_records[name]


def _history_metrics(history: History) -> dict[str, dict[int, Any]]:
    """A History has (round, value) pairs per name."""
    origins: dict[str, dict[int, Any]] = {}
    named: dict[str, dict[str, Any]] = {
        "train (clients)": history.metrics_distributed_fit,
        "evaluate (clients)": {"loss": history.losses_distributed, **history.metrics_distributed},
        "evaluate (server)": {"loss": history.losses_centralized, **history.metrics_centralized},
    }
    for origin, values in named.items():
        for name, pairs in values.items():
            for number, value in pairs:
                origins.setdefault(origin, {}).setdefault(number, {})[name] = value
    return origins


def _refuse_to_wait(grid: EngineGrid) -> Any:
    def refuse(seconds: float) -> None:
        raise RoundError(
            f"{grid.rule} waits for more nodes than the run's {len(grid.get_node_ids())}: "
            "run it with more clients, or lower its min_available_nodes and fractions."
        )

    return refuse
