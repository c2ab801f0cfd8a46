"""W1 to W3 on one card, in this process: stacked (T2), one client after the other (T1), a plain torch loop.

    python experiments/benchmarks/gpu.py
    python experiments/benchmarks/gpu.py --device cpu --quick

Per workload: milliseconds a round and their ratios, the share of the time that the device was busy, and
kernel launches a round (CUDA only). Needs no Ray and no network; a few minutes on a card.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from catalogue import WORKLOADS
from peers.local_training import LocalTraining
from peers.planned import Planned
from peers.torch_networks import network, read, write
from plan import SEED, experiment_of, write_plan
from rich.console import Console
from rich.table import Table
from session import distance
from spread import of_rounds, ratio
from torch.profiler import ProfilerActivity, profile
from workload import Variant

from fedsim.run.assembly import assemble
from fedsim.run.private_store import PrivateStore
from fedsim.run.round_loop import RoundLoop
from fedsim.run.threads import one_thread
from fedsim.run.transports import engine_federation

CHOSEN = ("W1", "W2", "W3")
REPETITIONS, ROUNDS, PROFILED = 5, 3, 3
Play = Callable[[], None]


class Ours:
    """Our round loop with one worker: this process."""

    def __init__(self, variant: Variant, tier: str, device: str, folder: Path) -> None:
        engine = {"tier": tier, "backend": "in-process", "workers": 1, "device": device}
        parts = assemble(experiment_of(variant, engine), SEED)
        self._federation = engine_federation(parts, PrivateStore(folder))
        self._loop = RoundLoop(parts, self._federation)
        self._state = self._loop.start()

    def play(self) -> None:
        """One round."""
        self._state, record = self._loop.play(self._state)
        if record["detours"]:
            raise SystemExit(f"Clients left their tier: {record['detours']}")

    @property
    def vector(self) -> Any:
        """[d], the model."""
        return self._state.vector.cpu().numpy()

    def close(self) -> None:
        """Let go of the data."""
        self._federation.close()


class Loop:
    """One client at a time in plain torch, the model and a client's batches on the device."""

    def __init__(self, plan: Planned, device: str) -> None:
        self._plan, self._number, self._device = plan, 0, device
        self._training = LocalTraining(plan, network(plan.known).to(device), device)
        self._vector = torch.from_numpy(plan.initial).to(device)

    def play(self) -> None:
        """One round."""
        self._number += 1
        total, examples = torch.zeros_like(self._vector), 0
        for place in range(len(self._plan.cohort(self._number))):
            write(self._training.model, self._vector)
            count = self._training.epoch(self._number, place)
            total.add_(read(self._training.model), alpha=count)
            examples += count
        self._vector = total / examples

    @property
    def vector(self) -> Any:
        """[d], the model."""
        return self._vector.cpu().numpy()

    def close(self) -> None:
        """Nothing is held open."""


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code: 0, or 1 where final models differ."""
    asked = _parser().parse_args(arguments)
    if asked.device.startswith("cuda") and not torch.cuda.is_available():
        raise SystemExit("torch sees no CUDA card: use --device cpu, or install a CUDA build of torch.")
    console, reports = Console(width=110), []
    with one_thread():
        for name in CHOSEN:
            for variant in WORKLOADS[name].variants(asked.quick):
                reports.append(_measured(_sized(variant, asked.quick), asked.device))
                console.print(_line(reports[-1]))
    console.print(_table(reports))
    if asked.out:
        asked.out.write_text(json.dumps(reports, indent=1) + "\n", encoding="utf-8")
    return int(any(one["model_distance"] > 1e-4 for one in reports))  # a card sums in another order


def _sized(variant: Variant, quick: bool) -> Variant:
    rounds, repetitions = (1, 2) if quick else (ROUNDS, REPETITIONS)
    return replace(variant, rounds=rounds + PROFILED, repetitions=repetitions)


def _measured(variant: Variant, device: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="fedsim-gpu-") as name:
        folder = Path(name)
        write_plan(variant, folder / "plan")
        players = {
            "T2": Ours(variant, "T2", device, folder / "T2"),
            "T1": Ours(variant, "T1", device, folder / "T1"),
            "loop": Loop(Planned(folder / "plan"), device),
        }
        try:
            return _timed(variant, players, device)
        finally:
            for player in players.values():
                player.close()


def _timed(variant: Variant, players: dict[str, Any], device: str) -> dict[str, Any]:
    times: dict[str, list[list[float]]] = {name: [] for name in players}
    rounds = variant.rounds - PROFILED
    for player in players.values():
        player.play()
    apart = max(distance(players[name].vector, players["loop"].vector) for name in ("T1", "T2"))
    for _ in range(variant.repetitions):
        for name, player in players.items():
            times[name].append([_milliseconds(player.play, device) for _ in range(rounds)])
    busy = {name: _busy(player.play, device) for name, player in players.items()}
    pairs = {
        f"{slow}/{fast}": vars(ratio(times[slow], times[fast]))
        for slow, fast in (("T1", "T2"), ("loop", "T2"), ("loop", "T1"))
    }
    return {
        "workload": variant.name,
        "device": device.partition(":")[0],
        "ms_per_round": {name: of_rounds(value)["median"] for name, value in times.items()},
        "ratios": pairs,
        "busy": {name: share for name, (share, _) in busy.items()},
        "launches": {name: launches for name, (_, launches) in busy.items()},
        "model_distance": apart,
    }


def _milliseconds(play: Play, device: str) -> float:
    with _finished(device):
        begun = time.perf_counter()
        play()
    return 1000 * (time.perf_counter() - begun)


@contextmanager
def _finished(device: str) -> Iterator[None]:
    """Waits for the card before and after."""
    if device != "cpu":
        torch.cuda.synchronize()
    yield
    if device != "cpu":
        torch.cuda.synchronize()


def _busy(play: Play, device: str) -> tuple[float, float | None]:
    """(share of the time in which the device computed, kernels a round); on CPU this process's own time."""
    if device == "cpu":
        begun, used = time.perf_counter(), time.process_time()
        for _ in range(PROFILED):
            play()
        return (time.process_time() - used) / (time.perf_counter() - begun), None
    with profile(activities=[ProfilerActivity.CUDA]) as seen, _finished(device):
        begun = time.perf_counter()
        for _ in range(PROFILED):
            play()
        torch.cuda.synchronize()
        wall = time.perf_counter() - begun
    kernels = [event for event in seen.events() if event.device_type == torch.autograd.DeviceType.CUDA]
    share = sum(event.self_device_time_total for event in kernels) / 1e6 / wall
    return share, len(kernels) / PROFILED


def _line(report: dict[str, Any]) -> str:
    told = (f"{name} {value:.4g} ms" for name, value in report["ms_per_round"].items())
    return f"{report['workload']}: {', '.join(told)}"


def _table(reports: Sequence[dict[str, Any]]) -> Table:
    table = Table(title="times faster on one device", title_justify="left")
    for heading in (
        "workload",
        "T2 over T1",
        "T2 over loop",
        "T1 over loop",
        "busy T2 / T1 / loop",
        "launches",
    ):
        table.add_column(heading, justify="left" if heading == "workload" else "right")
    for one in reports:
        told = [_spread(one["ratios"][pair]) for pair in ("T1/T2", "loop/T2", "loop/T1")]
        busy = " / ".join(f"{share:.0%}" for share in one["busy"].values())
        launches = " / ".join("-" if n is None else f"{n:.0f}" for n in one["launches"].values())
        table.add_row(one["workload"], *told, busy, launches)
    return table


def _spread(found: dict[str, float]) -> str:
    return f"{found['median']:.3g} ({found['low']:.3g} to {found['high']:.3g})"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--out", type=Path, help="the report as JSON")
    parser.add_argument("--quick", action="store_true", help="toy sizes: does everything start?")
    return parser


if __name__ == "__main__":
    sys.exit(main())
