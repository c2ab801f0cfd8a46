"""Where our own round spends its time, and how far it is from what the processor could do.

Profiled rounds run after the timed ones, on one worker, in a process of their own (`peers.anatomy`).
"""

import json
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from contenders import ours
from limit import Machine, physical_limit
from plan import write_plan
from system import MissingSystem, environment_of
from workload import Variant

ROUNDS = 3  # profiled, and as many before them without
PATIENCE = 300  # seconds


def missed(ratios: Mapping[str, Mapping[str, Any]], *, every: bool) -> list[tuple[str, str]]:
    """(variant, label) of ours behind each ratio below its goal.

    Args:
        ratios: of the report.
        every: also behind those that met it or have none.
    """
    found: dict[tuple[str, str], None] = {}
    for name, pairs in ratios.items():
        for pair, one in pairs.items():
            if every or one["met"] is False:
                variant = f"W5 {pair.rpartition('/')[2]}" if name == "W5" else name
                found[variant, one["between"][0]] = None
    return list(found)


def profiles(
    wanted: Sequence[tuple[str, str]], variants: Mapping[str, Variant], rows: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """For each (variant, label): milliseconds, shares of stages, and the physical limit on as many cores.

    Args:
        wanted: of ours.
        variants: by name.
        rows: of the report, for the milliseconds that were timed.
    """
    machine, found = Machine.measured(), []
    timed = {(row["workload"], row["label"]): row.get("ms_per_round") for row in rows}
    for name, label in wanted:
        tier, _, workers = label.split()
        with tempfile.TemporaryDirectory(prefix="fedsim-profile-") as folder:
            variant = replace(variants[name], rounds=1, repetitions=2 * ROUNDS)
            write_plan(variant, Path(folder) / "plan")
            seen = _anatomy(variant, tier, Path(folder))
            limit = physical_limit(Path(folder) / "plan", machine, int(workers))
        ms = (timed.get((name, label)) or {}).get("median")
        told = {"workload": name, "label": label, "ms": ms, "times_limit": ms and ms / limit["ms"]}
        found.append(told | {"limit": limit} | seen)
    return found


def _anatomy(variant: Variant, tier: str, folder: Path) -> dict[str, Any]:
    contender = ours(tier, "in-process:1")  # all in one process, where the profiler sees it
    asked = {"engine": dict(contender.engine), "variant": asdict(variant), "out": str(folder / "run")}
    command = [str(contender.python), "-m", "peers.anatomy", str(folder / "plan"), json.dumps(asked)]
    try:
        done = subprocess.run(
            [*command, str(ROUNDS)],
            cwd=folder,
            env=environment_of("1"),
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )
        if done.returncode:
            raise MissingSystem(f"ended: {(done.stderr.strip().splitlines() or ['no message'])[-1]}")
        return dict(json.loads(done.stdout.strip().splitlines()[-1]))
    except (MissingSystem, subprocess.TimeoutExpired) as error:
        return {"missing": str(error)}


def lines(found: Sequence[Mapping[str, Any]]) -> list[str]:
    """A paragraph per profile, for the console and the page."""
    told = []
    for one in found:
        limit = one["limit"]
        head = f"{one['workload']} {one['label']}: "
        if one["ms"]:
            head += f"{one['ms']:.4g} ms a round, {one['times_limit']:.2g} times the physical limit; "
        head += (
            f"limit {limit['ms']:.3g} ms: {limit['gflop']:.3g} GFLOP at {limit['gflops']:.0f} GFLOP/s are "
            f"{limit['arithmetic_ms']:.3g} ms, {limit['gbyte']:.3g} GB at {limit['gbytes']:.0f} GB/s are "
            f"{limit['memory_ms']:.3g} ms"
        )
        if "missing" in one:
            told.append(f"{head}. No profile: {one['missing']}")
            continue
        stages = ", ".join(f"{stage} {share:.0%}" for stage, share in one["stages"].items() if share >= 0.005)
        hot = ", ".join(f"{name} {share:.0%}" for name, share in one["hottest"].items())
        told.append(
            f"{head}. On one worker {one['plain_ms']:.4g} ms ({one['profiled_ms']:.4g} under the profiler): "
            f"{stages}. Functions: {hot}."
        )
    return told
