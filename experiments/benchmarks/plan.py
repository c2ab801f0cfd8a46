"""One workload as files that every system reads: data, first model, cohorts, batches. NumPy only.

A peer thus plays the very rounds that ours plays, without importing anything of ours: in round r the
clients `cohorts[r - 1]`, each with its examples in the order `orders[r - 1]` cut into batches.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from workload import LEARNING_RATE, Variant

from fedsim import rng
from fedsim.config import Experiment, parse
from fedsim.contracts import FederatedData
from fedsim.run.assembly import Parts, assemble
from fedsim.run.cohort import draw_cohort

SEED = 0


def experiment_of(variant: Variant, engine: dict[str, Any] | None = None) -> Experiment:
    """The variant as an experiment."""
    return parse({**variant.tables, "name": "benchmark", "rounds": variant.length, "engine": engine or {}})


def write_plan(variant: Variant, folder: Path) -> None:
    """Everything that a peer has to know."""
    parts = assemble(experiment_of(variant), SEED)
    data, federation = parts.data, parts.experiment.federation
    clients, rounds = federation.clients, range(1, variant.length + 1)
    cohorts = [draw_cohort(SEED, r, clients, federation.clients_per_round) for r in rounds]
    known: dict[str, Any] = {
        "network": parts.experiment.model.kind,
        "tensors": [[name, list(value.shape)] for name, value in parts.initial.items()],
        "clients": clients,
        "learning_rate": LEARNING_RATE,
        "spec": {"task": data.clients[0].spec.task, "classes": data.clients[0].spec.classes},
    }
    arrays = {"initial": parts.layout.flatten(parts.initial).numpy(), "cohorts": np.array(cohorts)}
    if known["spec"]["task"] == "rows":
        arrays |= _rows(data, known) | {"orders": _orders(parts, cohorts, known)}
    else:
        arrays |= _nodes(data)
    folder.mkdir(parents=True)
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)
    (folder / "plan.json").write_text(json.dumps(known), encoding="utf-8")


def _rows(data: FederatedData, known: dict[str, Any]) -> dict[str, Any]:
    """x [clients, n, ...] as stored and y [clients, n]; all clients have n rows."""
    parts: list[Any] = [client.train for client in data.clients]
    first = parts[0]
    scale = [0.0 if first.mean is None else float(first.mean.flatten()[0])]
    scale.append(1.0 if first.std is None else float(first.std.flatten()[0]))
    known["mean"], known["std"] = scale
    return {name: torch.stack([getattr(part, name) for part in parts]).numpy() for name in ("x", "y")}


def _orders(parts: Parts, cohorts: list[tuple[int, ...]], known: dict[str, Any]) -> Any:
    """[rounds, cohort, n]: the order in which `fedsim.training` shows each client's examples."""
    count = len(parts.data.clients[0].train)
    batch = int(parts.experiment.client.options["batch_size"])
    known["batch"] = min(batch, count)
    if batch >= count:
        return np.broadcast_to(np.arange(count), (len(cohorts), len(cohorts[0]), count))
    orders = [
        [torch.randperm(count, generator=rng.stream(SEED, "shuffle/0", number, client)) for client in cohort]
        for number, cohort in enumerate(cohorts, start=1)
    ]
    return np.array([[order.numpy() for order in cohort] for cohort in orders])


def _nodes(data: FederatedData) -> dict[str, Any]:
    """x [clients, v, f], y [clients, v], edges [2, e] of all clients end to end, and where each one's end."""
    parts: list[Any] = [client.train for client in data.clients]
    return {
        "x": torch.stack([part.x for part in parts]).numpy(),
        "y": torch.stack([part.y for part in parts]).numpy(),
        "edges": torch.cat([part.edge_index for part in parts], dim=1).numpy(),
        "edge_ends": np.cumsum([0, *(part.edge_index.shape[1] for part in parts)]),
    }
