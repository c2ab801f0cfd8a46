"""What `fedsim watermark audit` measures, as numbers and as lines."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from fedsim import rng
from fedsim.watermark.checks import check_count, check_seed
from fedsim.watermark.embedding import Embedding, train
from fedsim.watermark.false_claims import LEVELS, claims, fresh_keys, share_below
from fedsim.watermark.forgery import Effort, Forgery, forgeries
from fedsim.watermark.hidden_cost import FEW, hidden_cost
from fedsim.watermark.stored_model import build_model, tensors_suspect
from fedsim.watermark.subgraphs import Graph, set_size, split_nodes
from fedsim.watermark.suspect import Suspect
from fedsim.watermark.verification import Level, verify

Json = dict[str, Any]
PARTS = ("claims", "forgery", "cost")
FEWEST_MODELS = 20  # fewer say little about the spread between models
CURE = 100  # sets fed alone


@dataclass(frozen=True, kw_only=True)
class Audit:
    """An audit of one way to embed, on one data set.

    Attributes:
        graph: the data.
        table: `[model]`.
        options: how models are trained, and marked.
        sets: T.
        size: n; None: 0.005 of the training nodes.
        models: unmarked ones to claim.
        keys: claims on each.
        seed: of everything; model number i is trained with seed + i.
        effort: of the forger.
    """

    graph: Graph
    table: Mapping[str, Any]
    options: Embedding
    sets: int = 4
    size: int | None = None
    models: int = FEWEST_MODELS
    keys: int = 50
    seed: int = 0
    effort: Effort = Effort()  # noqa: RUF009 - frozen

    def __post_init__(self) -> None:
        check_seed(self.seed)
        check_count("--models", self.models, 1)
        check_count("--keys", self.keys, 1)
        check_count("--sets", self.sets, 2)
        if self.size is not None:
            check_count("--size", self.size, 2)

    @property
    def nodes_per_set(self) -> int:
        """N."""
        return self.size or set_size(len(split_nodes(self.graph.y, self.seed).train))

    def template(self, number: int) -> nn.Module:
        """Each model starts from weights of its own."""
        return build_model(self.table, self.graph.x.shape[1], self.graph.classes, self.seed + number)

    def unmarked(self, number: int) -> Suspect:
        """Train one."""
        model, seed = self.template(number), self.seed + number
        split = split_nodes(self.graph.y, self.seed)
        tensors = train(model, self.graph, split, self.options, seed=seed)
        return tensors_suspect(f"unmarked {number}", model, tensors)

    def run(self, parts: Sequence[str]) -> Json:
        """JSON values of the parts asked for."""
        measures = {"claims": self.claims, "forgery": self.forgery, "cost": self.cost}
        return {part: measures[part]() for part in parts}

    def claims(self) -> Json:
        """False claims on unmarked models, by the key and by the matching index."""
        found = claims(
            self.graph,
            (self.unmarked(number) for number in range(self.models)),
            keys=self.keys,
            sets=self.sets,
            size=self.nodes_per_set,
            seed=self.seed,
            null_sets=min(100, len(split_nodes(self.graph.y, self.seed).train) // self.nodes_per_set),
        )
        shares: Json = {"models": self.models, "keys": self.keys, "smallest_p": float(found.key.min())}
        for name, values in (("key", found.key), ("matching_index", found.index)):
            if values is not None:
                shares[name] = [
                    {"level": one.level, "share": one.share, "error": one.error, "holds": one.holds}
                    for one in (share_below(values, level) for level in LEVELS)
                ]
        return shares

    def forgery(self) -> list[Json]:
        """Forgeries on the first unmarked model."""
        suspect = self.unmarked(0)
        found = forgeries(
            self.graph,
            suspect,
            sets=self.sets,
            size=self.nodes_per_set,
            seed=self.seed,
            effort=self.effort,
        )
        return [_forgery_json(one) for one in found]

    def cost(self) -> Json:
        """The control, the marked model, and the marked model with the cure."""
        split, size = split_nodes(self.graph.y, self.seed), self.nodes_per_set
        (key,) = fresh_keys(self.graph, keys=1, sets=self.sets, size=size, seed=self.seed)
        model, told = self.template(0), {}
        cure = self.options.cure or min(CURE, len(split.train) // size - self.sets)
        for name, keys, sets in (("control", [], 0), ("marked", [key], 0), ("cured", [key], cure)):
            options = replace(self.options, cure=sets)
            tensors = train(model, self.graph, split, options, keys=keys, seed=self.seed)
            verdict = verify(key, self.graph, tensors_suspect(name, model, tensors), null_sets=0)
            own = hidden_cost(
                model, tensors, self.graph, split.test, size, rng.derive(self.seed, "watermark.cost")
            )
            told[name] = {**vars(own), "key_z": verdict.match.z, "key_p": verdict.match.p}
        return told


def _forgery_json(one: Forgery) -> Json:
    level = Level()
    return {
        "name": one.name,
        "tries": one.tries,
        "index": one.index.index,
        "index_z": one.index.z,
        "index_p": one.index.p,
        "index_accepts": one.index.p <= level.alpha,
        "free_key_p": one.chosen.p,
        "key_p": one.match.p,
        "key_accepts": one.match.p <= level.threshold,
        "threshold": level.threshold,
    }


def audit_lines(found: Json) -> Iterator[str]:
    """An audit for people."""
    if "claims" in found:
        yield from _claims_lines(found["claims"])
    if "forgery" in found:
        yield "forgery on an unmarked model: sets chosen after seeing it"
        yield "  (a free key: features and signs that follow from nothing, as in the paper)"
        yield f"  {'':24}{'MI z':>7}{'MI p':>11}  MI says  {'free key p':>11}{'key p':>11}  verdict"
        for one in found["forgery"]:
            yield (
                f"  {one['name']:24}{one['index_z']:7.2f}{one['index_p']:11.2g}  "
                f"{'marked' if one['index_accepts'] else 'no    '}  {one['free_key_p']:11.2g}"
                f"{one['key_p']:11.3g}  "
                f"{'MARKED' if one['key_accepts'] else 'not proven'}"
            )
    if "cost" in found:
        yield "hidden cost: accuracy on test nodes"
        yield f"  {'':10}{'whole':>8}{f'<={FEW} nb.':>9}{'sets':>8}{'alone':>8}{'key z':>8}"
        for name, one in found["cost"].items():
            low = "-" if one["low_degree"] is None else f"{one['low_degree']:.4f}"
            yield (
                f"  {name:10}{one['whole']:8.4f}{low:>9}{one['sets_alone']:8.4f}"
                f"{one['nodes_alone']:8.4f}{one['key_z']:8.2f}"
            )


def _claims_lines(found: Json) -> Iterator[str]:
    total = found["models"] * found["keys"]
    yield f"false claims: {total} of fresh sets and keys on {found['models']} unmarked models"
    if found["models"] < FEWEST_MODELS:
        yield f"  fewer than {FEWEST_MODELS} models: their spread is hardly known"
    for name in ("key", "matching_index"):
        for one in found.get(name, ()):
            word = "holds" if one["holds"] else "TOO MANY"
            yield f"  {name:15} p <= {one['level']:<5g} {one['share']:.4f} +- {one['error']:.4f}  {word}"
    yield f"  smallest p of a key: {found['smallest_p']:.3g}"
