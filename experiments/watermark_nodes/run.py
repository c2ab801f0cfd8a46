"""Marks in graph models of one data set: accuracy, marks met, p, and what removal leaves of them.

    python experiments/watermark_nodes/run.py experiments/watermark_photo/settings.toml --out runs/photo

Every cell (a model trained with a mark, its control, or an attack on it) is a line of cells.jsonl; a second
call goes on where the first stopped. Keys follow from the seed here, so that numbers repeat; a real key's
secret comes from `fedsim watermark keygen`.
"""

import argparse
import json
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

warnings.filterwarnings("ignore", category=DeprecationWarning)  # PyG's own, on torch 2.13

from attacks.removal.answers import noisy, rounded  # noqa: E402
from attacks.removal.distillation import distil, extract  # noqa: E402
from attacks.removal.fine_tuning import fine_tune  # noqa: E402
from attacks.removal.hostile_majority import federated_fine_tune, parted  # noqa: E402
from attacks.removal.pruning import prune_units, prune_weights  # noqa: E402
from attacks.removal.quantisation import quantise  # noqa: E402
from fedsim import rng  # noqa: E402
from fedsim.plugins import build  # noqa: E402
from fedsim.run.atomic_files import finite  # noqa: E402
from fedsim.toml import read_toml  # noqa: E402
from fedsim.training.optimizers import Adam  # noqa: E402
from fedsim.watermark.embedding import Embedding, Mark, accuracy, train  # noqa: E402
from fedsim.watermark.false_claims import fresh_keys  # noqa: E402
from fedsim.watermark.forward import GraphModel  # noqa: E402
from fedsim.watermark.key import Key  # noqa: E402
from fedsim.watermark.loss import shares_met  # noqa: E402
from fedsim.watermark.sources import read_graph  # noqa: E402
from fedsim.watermark.stored_model import build_model, tensors_suspect  # noqa: E402
from fedsim.watermark.subgraphs import draw_sets, induced, set_size, split_nodes  # noqa: E402
from fedsim.watermark.suspect import Suspect  # noqa: E402
from fedsim.watermark.verification import verify  # noqa: E402

Cell = dict[str, Any]
PARTS = ("embed", "attack")
NARROWED = ("parts", "seeds", "models", "sets")  # what the command line may cut down


class Bench:
    """One data set and its settings."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.settings = settings
        self.graph = read_graph(settings["data"])
        table = {**settings["embedding"], "kind": "fedsim.watermark.embedding:Embedding"}
        self.options: Embedding = build("embeddings", table, "embedding")
        self.null_sets = settings.get("null_sets", 100)
        self.trained: dict[tuple[Any, ...], dict[str, Tensor]] = {}

    def template(self, kind: str, seed: int) -> Any:
        table = {"kind": kind, **self.settings["model"]}
        return build_model(table, self.graph.x.shape[1], self.graph.classes, seed)

    def key(self, sets: int, seed: int) -> Key:
        size = set_size(len(split_nodes(self.graph.y, seed).train))
        return fresh_keys(self.graph, keys=1, sets=sets, size=size, seed=seed)[0]

    def tensors(self, kind: str, sets: int, seed: int) -> dict[str, Tensor]:
        """Trained once; sets = 0: the control without a mark."""
        if (kind, sets, seed) not in self.trained:
            keys = [self.key(sets, seed)] if sets else []
            split = split_nodes(self.graph.y, seed)
            self.trained = {  # one at a time
                (kind, sets, seed): train(
                    self.template(kind, seed), self.graph, split, self.options, keys=keys, seed=seed
                )
            }
        return self.trained[kind, sets, seed]

    def accuracies(self, kind: str, tensors: dict[str, Tensor], seed: int) -> dict[str, float]:
        whole = GraphModel(self.template(kind, seed), self.graph.x, self.graph.edge_index)
        split = split_nodes(self.graph.y, seed)
        return {
            name: accuracy(whole, tensors, self.graph.y, getattr(split, name))
            for name in ("train", "val", "test")
        }

    def judged(self, suspect: Suspect, key: Key) -> dict[str, float | bool | None]:
        verdict = verify(key, self.graph, suspect, null_sets=self.null_sets)
        told: dict[str, float | bool | None] = {
            "p": verdict.match.p,
            "key_z": verdict.match.z,
            "marked": verdict.marked,
        }
        if verdict.index is not None:
            told |= {"index_z": verdict.index.z, "index_p": verdict.index.p, "rank_p": verdict.index.rank_p}
        return told

    def embedded(self, kind: str, sets: int, seed: int) -> Cell:
        """One line of the table."""
        started = time.process_time()
        tensors = self.tensors(kind, sets, seed)
        cell: Cell = {"seconds": time.process_time() - started, **self.accuracies(kind, tensors, seed)}
        if sets:
            key, model = self.key(sets, seed), self.template(kind, seed)
            mark = Mark.of(model, key, self.graph)
            with torch.no_grad():
                cell["met"] = shares_met(mark.projection, mark.signs, mark.probabilities(tensors))
            cell |= self.judged(tensors_suspect("marked", model, tensors), key)
        return cell

    def attacked(self, kind: str, sets: int, seed: int, attack: str, strength: float) -> Cell:
        """One point of a robustness curve."""
        model, key = self.template(kind, seed), self.key(sets, seed)
        tensors = self.tensors(kind, sets, seed)
        honest = tensors_suspect("marked", model, tensors)
        draws = rng.stream(seed, f"watermark.attack.{attack}")
        if attack == "rounding":
            return self.judged(Suspect("rounded", rounded(honest.query, int(strength))), key)
        if attack == "noise":
            return self.judged(Suspect("noisy", noisy(honest.query, strength, draws)), key)
        left = self.removed(kind, tensors, seed, attack, strength, draws)
        told = self.judged(tensors_suspect(attack, model, left), key)
        return {**told, "test": self.accuracies(kind, left, seed)["test"]}

    def removed(
        self, kind: str, tensors: dict[str, Tensor], seed: int, attack: str, strength: float, draws: Any
    ) -> dict[str, Tensor]:
        """The model that an attack leaves; strengths are shares, bits, epochs or rounds."""
        split, model = split_nodes(self.graph.y, seed), self.template(kind, seed)
        rate = self.options.optimizer.learning_rate
        count = int(strength)
        simple: dict[str, Callable[[], dict[str, Tensor]]] = {
            "prune weights": lambda: prune_weights(tensors, strength),
            "prune units": lambda: prune_units(tensors, strength),
            "quantise": lambda: quantise(tensors, count),
        }
        if attack in simple:
            return simple[attack]()
        if attack.startswith("fine-tune"):
            scale = 0.1 if attack.endswith("0.1x") else 1.0
            return fine_tune(
                model, tensors, self.graph, split.train,
                optimizer=Adam(learning_rate=scale * rate), epochs=count, rng=draws,
            )  # fmt: skip
        student = self.template(kind, seed + 1000)
        if attack == "distil":
            return distil(
                model, tensors, self.graph, split.train, student=student,
                optimizer=Adam(learning_rate=rate), epochs=count, rng=draws,
            )  # fmt: skip
        if attack.startswith("extract"):
            alone = None
            if attack == "extract with sets alone":
                drawn = draw_sets(split.test, 40, self.key(4, seed).nodes.shape[1], draws)
                alone = induced(self.graph.x, self.graph.edge_index, drawn)
            return extract(
                tensors_suspect("api", model, tensors).query, student, self.graph, split.test, alone=alone,
                optimizer=Adam(learning_rate=rate), epochs=count, rng=draws, hard=attack.endswith("labels"),
            )  # fmt: skip
        return federated_fine_tune(
            model, tensors, parted(self.graph, split.train, 5, draws),
            optimizer=Adam(learning_rate=0.1 * rate), rounds=count, epochs=3, rng=draws,
        )  # fmt: skip

    def cells(self) -> Iterator[tuple[Cell, Callable[[], Cell]]]:
        """(what, how) of every cell; those of one trained model follow each other."""
        asked = self.settings
        for seed in asked["seeds"]:
            for kind in asked["models"]:
                for sets in (0, *asked["sets"]):
                    what = {"part": "embed", "model": kind, "sets": sets, "seed": seed}
                    if "embed" in asked["parts"]:
                        yield what, lambda kind=kind, sets=sets, seed=seed: self.embedded(kind, sets, seed)
                    if (
                        "attack" in asked["parts"]
                        and sets == asked["attacked"]["sets"]
                        and kind in asked["attacked"]["models"]
                    ):
                        yield from self.curve(kind, sets, seed)

    def curve(self, kind: str, sets: int, seed: int) -> Iterator[tuple[Cell, Callable[[], Cell]]]:
        for attack, strengths in self.settings["attacks"].items():
            if seed in self.settings["attacked"]["seeds"]:
                for strength in strengths:
                    known = {"model": kind, "sets": sets, "seed": seed}
                    what = {"part": "attack", **known, "attack": attack, "strength": strength}
                    yield (
                        what,
                        lambda attack=attack, strength=strength: self.attacked(
                            kind, sets, seed, attack, strength
                        ),
                    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("settings", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS, help="of the table")
    for name, kind in (("seeds", int), ("models", str), ("sets", int)):
        parser.add_argument(f"--{name}", type=kind, nargs="+", help="in place of the settings'")
    given = parser.parse_args()
    torch.set_num_threads(1)
    settings = read_toml(given.settings)
    settings |= {name: value for name, value in vars(given).items() if name in NARROWED and value}
    given.out.mkdir(parents=True, exist_ok=True)
    path = given.out / "cells.jsonl"
    done = read_cells(path)
    bench = Bench(settings)
    with path.open("a", encoding="utf-8") as file:
        for what, how in bench.cells():
            if not any(all(cell.get(name) == value for name, value in what.items()) for cell in done):
                cell = finite({**what, **how()})
                done.append(cell)
                file.write(json.dumps(cell) + "\n")
                file.flush()
                print(json.dumps(cell), flush=True)
    from report import draw, table  # beside this file

    print(table(done))
    draw(done, given.out / "robustness.png", settings["data"])


def read_cells(path: Path) -> list[Cell]:
    """The lines that an earlier call finished."""
    if not path.is_file():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.endswith("}")]


if __name__ == "__main__":
    main()
