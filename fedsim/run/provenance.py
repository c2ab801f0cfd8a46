"""Where a number comes from: versions, source, and what the machine can do (never who or where it is)."""

import os
import platform
import subprocess
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from fedsim.params import Layout
from fedsim.run.assembly import Parts
from fedsim.run.server_evaluation import server_device
from fedsim.training.tiers import automatic_tier

PACKAGES = (
    "fedsim-flower",
    "flwr",
    "ray",
    "torch",
    "torch-geometric",
    "numpy",
    "scipy",
    "scikit-learn",
    "pydantic",
    "safetensors",
    "datasets",
    "pymetis",
)


def versions() -> dict[str, str | None]:
    """Installed versions; None where a package is absent."""
    return {"python": platform.python_version(), **{name: _version(name) for name in PACKAGES}}


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def hardware() -> dict[str, Any]:
    """What last bits may depend on: instruction set, kinds of devices, threads."""
    cards = [torch.cuda.get_device_name(card) for card in range(torch.cuda.device_count())]
    return {
        "system": platform.system(),
        "machine": platform.machine(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "cores": os.cpu_count(),
        "threads_per_worker": 1,
        "gpus": cards,
        "cuda": torch.version.cuda,
    }


def commit(folder: Path) -> dict[str, Any] | None:
    """The git commit of the source in `folder`, and whether it was changed since.

    None outside git, and where git does not track the source: an installation inside somebody's repository.
    """

    def git(*words: str) -> str:
        done = subprocess.run(
            ["git", *words], cwd=folder, capture_output=True, text=True, timeout=10, check=True
        )
        return done.stdout.strip()

    try:
        if not git("ls-files", "."):
            return None
        return {"sha": git("rev-parse", "HEAD"), "changed": bool(git("status", "--porcelain", "-uno"))}
    except (OSError, subprocess.SubprocessError):
        return None


def manifest(
    parts: Parts,
    layout: Layout,
    device: str | None = None,
    timed: Mapping[str, float] | None = None,
    *,
    code: str | None = None,
) -> dict[str, Any]:
    """manifest.json of one seed.

    Args:
        parts: of the run.
        layout: of the shared tensors.
        device: where clients compute, once that is known; SuperNodes decide it for themselves.
        timed: seconds of a round by tier, where the tier was measured.
        code: see `fedsim.run.code`.
    """
    experiment = parts.experiment
    asked = experiment.engine.device
    return {
        "name": experiment.name,
        "seed": parts.seed,
        "digest": experiment.digest(),
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "config": experiment.model_dump(mode="json"),
        "plugins": parts.plugins.described(),
        "data": dict(parts.data.facts),
        "model": {
            "parameters": layout.size,
            "tensors": {
                name: [list(shape), str(dtype)] for name, shape, dtype in (*layout.floats, *layout.integers)
            },
        },
        "malicious": list(parts.malicious),
        "versions": versions(),
        "commit": commit(Path(__file__).resolve().parent),
        "code": code,
        "hardware": hardware(),
        "tier": tier(parts),
        **({"tier_measured": dict(timed)} if timed else {}),
        "device": {"asked": asked, "clients": device, "server": str(server_device(asked))},
    }


def tier(parts: Parts) -> str:
    """The tier of a run in this process: as asked, by the rule on declared sizes, or as measured.

    `measured` itself where nothing was measured yet.
    """
    asked: str = parts.settled_tier or parts.experiment.engine.tier
    if asked != "auto":
        return asked
    clients = parts.data.clients
    return automatic_tier(
        parts.experiment.federation.clients_per_round,
        parts.program,
        clients[0].spec,
        [len(client.train) for client in clients],
        parts.experiment.engine.chunk,
    )
