"""The verdict on a suspect, from its answers to the key's sets, and the numbers beside it."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedsim import rng
from fedsim.errors import ConfigError
from fedsim.watermark.explanation import explain
from fedsim.watermark.key import Key
from fedsim.watermark.statistics import (
    KeyMatch,
    MatchingIndex,
    judged_index,
    key_match,
    least_p,
    matching_index,
    null_of_index,
)
from fedsim.watermark.subgraphs import Graph, Subgraphs, draw_sets, induced, split_nodes, without
from fedsim.watermark.suspect import Suspect

ALPHA = 0.01
BUDGET = 1_000_000  # keys that an owner could have tried
NULL_SETS = 100
TUPLES = 1000
FEWEST_NULL_SETS = 10


@dataclass(frozen=True, kw_only=True)
class Level:
    """What the verdict asks: p <= alpha / budget."""

    alpha: float = ALPHA
    budget: int = BUDGET

    def __post_init__(self) -> None:
        if not 0 < self.alpha < 1:
            raise ConfigError(f"alpha must be above 0 and below 1, found {self.alpha}.")
        if self.budget < 1:
            raise ConfigError(f"budget must be at least 1 key, found {self.budget}.")

    @property
    def threshold(self) -> float:
        """The largest p that convicts."""
        return self.alpha / self.budget


@dataclass(frozen=True)
class Verdict:
    """All that is known of one suspect and one key.

    Attributes:
        suspect: its name.
        key: whose mark was looked for.
        level: of the decision.
        match: the statistic that decides.
        index: the paper's statistic; None where no null was drawn.
    """

    suspect: str
    key: Key
    level: Level
    match: KeyMatch
    index: MatchingIndex | None

    @property
    def marked(self) -> bool:
        """Does the suspect carry the owner's mark, at this level?"""
        return self.match.p <= self.level.threshold

    def as_json(self) -> dict[str, Any]:
        """JSON values."""
        match, level = self.match, self.level
        return {
            "suspect": self.suspect,
            "owner": self.key.owner,
            "date": self.key.date,
            "commitment": self.key.commitment()["sha256"],
            "verdict": "marked" if self.marked else "not proven",
            "marked": self.marked,
            "p": match.p,
            "alpha": level.alpha,
            "budget": level.budget,
            "threshold": level.threshold,
            "key": {
                "matches": match.matches,
                "positions": match.positions,
                "mean": match.mean,
                "deviation": match.deviation,
                "z": match.z,
                "p": match.p,
                "least_p": least_p(len(self.key.features), int((self.key.signs > 0).sum())),
            },
            "matching_index": None if self.index is None else _index_json(self.index),
        }


def _index_json(index: MatchingIndex) -> dict[str, Any]:
    return {
        "index": index.index,
        "null_mean": index.mean,
        "null_deviation": index.deviation,
        "z": index.z,
        "p": index.p,
        "rank_p": index.rank_p,
        "tuples": len(index.null),
        "decides": False,
    }


def verify(
    key: Key,
    graph: Graph,
    suspect: Suspect,
    *,
    level: Level | None = None,
    null_sets: int = NULL_SETS,
    tuples: int = TUPLES,
) -> Verdict:
    """Ask a suspect about the key's sets, and about other sets for the null of the matching index.

    Args:
        key: whose mark is looked for.
        graph: the one that the key was made for.
        suspect: a black box.
        level: of the decision; alpha 0.01 over 10^6 keys by default.
        null_sets: other sets to ask about, fewer where nodes run out; 0: none, and no matching index.
        tuples: of them, for the null.

    Raises:
        ConfigError: key, data and suspect do not fit together, or there are too few nodes for the null.
    """
    signs = signs_on(suspect, key, graph)
    match = key_match(signs[:, list(key.features)], key.signs)
    index = None
    if null_sets:
        nodes = null_nodes(key, graph, null_sets)
        null = null_of_index(
            signs_of_sets(suspect, graph, nodes),
            len(key.sets),
            tuples,
            rng.stream(key.seed, "watermark.tuples"),
        )
        index = judged_index(matching_index(signs), null)
    return Verdict(suspect.name, key, level or Level(), match, index)


def signs_on(suspect: Suspect, key: Key, graph: Graph) -> Tensor:
    """[T, F] int8: the signs of the suspect's explanations of the key's sets."""
    sets = key.subgraphs(graph)
    return _signs(sets, suspect.answers(sets, key.classes))


def signs_of_sets(suspect: Suspect, graph: Graph, nodes: Tensor) -> Tensor:
    """[s, f] int8: the signs of the suspect's explanations of sets [s, n]."""
    sets = induced(graph.x, graph.edge_index, nodes)
    return _signs(sets, suspect.answers(sets, graph.classes))


def _signs(sets: Subgraphs, answers: Tensor) -> Tensor:
    """[s, f] int8, one set at a time.

    What is kept is allocated first: small rows kept between the large matrices of one set and the next
    hold those matrices' places in the heap (Coauthor CS, 100 sets: up to 2.5 GB in place of 1.4).
    """
    found = torch.empty(len(sets.x), sets.x.shape[2], dtype=torch.int8)
    for place, (x, one) in enumerate(zip(sets.x, answers, strict=True)):
        found[place] = explain(x, one).sign()
    return found


def null_nodes(key: Key, graph: Graph, sets: int) -> Tensor:
    """[s, n]: disjoint random sets of training nodes that share none with the key's, s at most `sets`.

    Raises:
        ConfigError: there are nodes for fewer than T or FEWEST_NULL_SETS sets.
    """
    free = without(split_nodes(graph.y, key.seed).train, key.nodes)
    size = key.nodes.shape[1]
    possible = min(sets, len(free) // size)
    needed = max(FEWEST_NULL_SETS, len(key.sets))
    if possible < needed:
        raise ConfigError(
            f"The null needs at least {needed} other sets of {size} training nodes, but the data have nodes "
            f"for {possible}: ask for none with --null-sets 0."
        )
    return draw_sets(free, possible, size, rng.stream(key.seed, "watermark.null"))
