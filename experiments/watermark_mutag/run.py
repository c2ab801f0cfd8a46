"""Marks in models that classify the molecules of MUTAG: accuracy with and without, matches, p.

    python experiments/watermark_mutag/run.py

Collections of 5 graphs: 2 to 5 with one key for all of them, as in the paper, and 20 with signs of their own.
"""

import argparse
import statistics
import time
import warnings
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

warnings.filterwarnings("ignore", category=DeprecationWarning)  # PyG's own, on torch 2.13

from fedsim import rng  # noqa: E402
from fedsim.contracts import Batch, DataSpec  # noqa: E402
from fedsim.data.examples import Graphs  # noqa: E402
from fedsim.data.split import stratified  # noqa: E402
from fedsim.plugins import build  # noqa: E402
from fedsim.training.functional import FunctionalModel, model_tensors  # noqa: E402
from fedsim.training.optimizers import Adam  # noqa: E402
from fedsim.training.template import SeededModel  # noqa: E402
from fedsim.watermark.descent import descend, summed  # noqa: E402
from fedsim.watermark.explanation import explain  # noqa: E402
from fedsim.watermark.graph_level import GraphKey, GraphMark  # noqa: E402
from fedsim.watermark.loss import embedding_loss, pcgrad  # noqa: E402
from fedsim.watermark.statistics import least_p, matching_index  # noqa: E402
from fedsim.watermark.subgraphs import draw_sets  # noqa: E402

MARGIN = 0.01


@dataclass(frozen=True)
class Plan:
    """One row of the table."""

    name: str
    sets: int
    shared: bool


PLANS = (
    Plan("no mark", 0, True),
    *(Plan(f"T={sets}, one key", sets, True) for sets in (2, 3, 4, 5)),
    Plan("T=20, own signs", 20, False),
)


def run(kind: str, plan: Plan, seed: int, given: argparse.Namespace, graphs: Graphs) -> dict[str, float]:
    """One model."""
    train, val, test = split_graphs(graphs, seed)
    table = {"kind": kind, "hidden": 64, "layers": 3, "dropout": 0.1}
    model = SeededModel(build("models", table, "model"), seed).build(
        DataSpec("graphs", (graphs.x.shape[1],), 2)
    )
    key = key_of(plan, seed, graphs, train, given.size) if plan.sets else None
    mark = None if key is None else GraphMark.of(graphs, key)
    batch = graphs.batch(train)  # with the marked graphs: without them too few are left to learn from
    call, draws = FunctionalModel(model), rng.stream(seed, "dropout")

    def losses(tensors: dict[str, Tensor], step: int) -> Tensor:
        logits, _ = call(tensors, batch, model.draw(batch, draws))
        task = functional.cross_entropy(logits, batch.y)
        if mark is None:
            return task
        return torch.stack([task, given.strength * mark.loss(model, tensors, MARGIN).float()])

    combine = pcgrad if mark else summed
    tensors = descend(model_tensors(model), losses, Adam(learning_rate=5e-3), given.epochs, combine)
    told = {
        "train": right(call, tensors, graphs.batch(train)),
        "val": right(call, tensors, graphs.batch(val)),
        "test": right(call, tensors, graphs.batch(test)),
    }
    if key is None or mark is None:
        return told
    signs, match = mark.signs(model, tensors), mark.match(model, tensors)
    own = key.signs[0] if plan.shared else key.signs  # what was drawn
    return {
        **told,
        "met": match.matches / match.positions,
        "p": match.p,
        "floor": least_p(own.numel(), int((own > 0).sum())),
        "index": matching_index(signs),
    }


def freely(plan: Plan, seed: int, size: int, graphs: Graphs) -> dict[str, float]:
    """What no model can beat: answers chosen for the key alone, the best of a few descents."""
    train, _, _ = split_graphs(graphs, seed)
    key = key_of(plan, seed, graphs, train, size)
    mark, best = GraphMark.of(graphs, key), {"met": -1.0}
    for restart in range(3):
        draws = rng.stream(seed, "free", restart)
        start = 2 * torch.randn(*key.sets.shape, 2, generator=draws, dtype=torch.float64)

        def losses(answers: Mapping[str, Tensor], step: int) -> Tensor:
            return embedding_loss(mark.projection, key.signs, answers["logits"].softmax(dim=-1), MARGIN)

        found = descend({"logits": start}, losses, Adam(learning_rate=0.05), 300)["logits"].softmax(dim=-1)
        match = key.match(explain(mark.collections.x, found).sign().to(torch.int8)[:, key.features])
        if match.matches / match.positions > best["met"]:
            best = {"met": match.matches / match.positions, "p": match.p}
    varied = (mark.collections.x != mark.collections.x[:, :1]).any(dim=1)[:, key.features]
    return {**best, "varied": float(varied.double().mean())}


def split_graphs(graphs: Graphs, seed: int) -> tuple[Tensor, ...]:
    """Train, validation and test graphs, [.] int64 each: 60 / 20 / 20 %."""
    first, second = len(graphs) * 6 // 10, len(graphs) * 2 // 10
    sizes = np.array([first, second, len(graphs) - first - second])
    roles = stratified(graphs.y.numpy(), sizes, rng.numpy_stream(seed, "split"))
    return tuple(torch.from_numpy(role) for role in roles)


def key_of(plan: Plan, seed: int, graphs: Graphs, train: Tensor, size: int) -> GraphKey:
    """Keys follow from the seed, so that the table repeats."""
    draws = rng.stream(seed, "key")
    sets = draw_sets(train, plan.sets, size, draws)
    secret = bytes(torch.randint(256, (32,), generator=draws).tolist()).hex()
    features = graphs.batch(sets.flatten()).x
    in_use = int((features != 0).any(dim=0).sum())
    marks = in_use if plan.shared else 3  # carbon, nitrogen, oxygen: the others are missing in most sets
    return GraphKey.of(
        graphs, sets, owner="Ada", date="2026-01-01", secret=secret, shared=plan.shared, marks=marks
    )


def right(call: FunctionalModel, tensors: dict[str, Tensor], batch: Batch) -> float:
    """Accuracy."""
    with torch.no_grad():
        return float((call(tensors, batch)[0].argmax(dim=1) == batch.y).double().mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=200)
    parser.add_argument("--strength", type=float, default=100.0)
    parser.add_argument("--size", type=int, default=5, help="graphs of a collection")
    parser.add_argument("--free", action="store_true", help="no models: answers chosen for the key alone")
    parser.add_argument("--models", nargs="+", default=["gcn", "sgc", "sage"])
    given = parser.parse_args()
    torch.set_num_threads(1)
    (pool,) = build("data", {"kind": "pyg", "name": "TUDataset/MUTAG"}, "data").load()
    print(
        f"{given.seeds} seeds, {given.epochs} epochs, strength {given.strength:g}, "
        f"collections of {given.size} graphs: means, and the largest p"
    )
    if given.free:
        for plan in PLANS[1:]:
            cells = [freely(plan, seed, given.size, pool.graphs) for seed in range(given.seeds)]
            met, varied = (statistics.fmean(cell[name] for cell in cells) for name in ("met", "varied"))
            told = (
                f"positions that vary {varied:.4f}  met {met:.4f}  largest p {max(c['p'] for c in cells):.2g}"
            )
            print(f"free   {plan.name:16} {told}", flush=True)
        return
    print("model  mark             train   val     test    met     largest p  least possible  MI    CPU s")
    for kind in given.models:
        for plan in PLANS:
            started = time.process_time()
            cells = [run(kind, plan, seed, given, pool.graphs) for seed in range(given.seeds)]
            mean = {name: statistics.fmean(cell[name] for cell in cells) for name in cells[0]}
            line = f"{kind:6} {plan.name:16} {mean['train']:.4f}  {mean['val']:.4f}  {mean['test']:.4f}"
            if plan.sets:
                line += f"  {mean['met']:.4f}  {max(cell['p'] for cell in cells):9.2g}  "
                line += f"{max(cell['floor'] for cell in cells):14.2g}  {mean['index']:.1f}"
            print(f"{line}   {(time.process_time() - started) / len(cells):.1f}", flush=True)


if __name__ == "__main__":
    main()
