"""Keys made to fit a model that carries no mark, and what the rules leave of them.

A forger who may choose sets after seeing the model lifts the matching index as far as a mark does. What
cannot be chosen are the signs: they follow from the sets. So every forgery here ends with a key made by the
rules (`make_key`), and the question is what its exact p-value says.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedsim import rng
from fedsim.errors import ConfigError
from fedsim.watermark.checks import check_count
from fedsim.watermark.key import Key, make_key
from fedsim.watermark.marks import sign_counts
from fedsim.watermark.statistics import (
    KeyMatch,
    MatchingIndex,
    judged_index,
    key_match,
    matching_index,
    null_of_index,
)
from fedsim.watermark.subgraphs import Graph, draw_sets, split_nodes
from fedsim.watermark.suspect import Suspect
from fedsim.watermark.verification import signs_of_sets

Score = Callable[[Tensor], float]
"""[t, f] signs -> what the forger wants much of."""


@dataclass(frozen=True, kw_only=True)
class Effort:
    """What a forger spends.

    Attributes:
        candidates: random sets whose explanations are known.
        width: tuples kept by the beam.
        swaps: single nodes tried in place of others.
        secrets: keys tried on the best sets.
    """

    candidates: int = 600
    width: int = 50
    swaps: int = 400
    secrets: int = 10_000

    def __post_init__(self) -> None:
        check_count("--candidates", self.candidates, 2)
        check_count("width", self.width, 1)
        check_count("--swaps", self.swaps, 0)
        check_count("--secrets", self.secrets, 1)


@dataclass(frozen=True)
class Forgery:
    """One attempt.

    Attributes:
        name: how it was made.
        index: the matching index of its sets, which the paper would decide on.
        match: of a key made by the rules for these sets.
        chosen: what the paper's key, which follows from nothing, lets a forger claim: the match of the best
            features and signs that could be named afterwards, or of the key that the sets were chosen for.
        tries: keys that were tried.
    """

    name: str
    index: MatchingIndex
    match: KeyMatch
    chosen: KeyMatch
    tries: int


@dataclass(frozen=True)
class _Forger:
    """What all attempts share: the model, its data, candidates and the null of the matching index."""

    graph: Graph
    suspect: Suspect
    nodes: Tensor  # [s, n] candidate sets
    signs: Tensor  # [s, F] of their explanations
    null: Tensor
    seed: int

    def key(self, sets: Tensor, secret: int = 0) -> Key:
        draws = rng.stream(self.seed, "watermark.forger.secret", secret)
        text = bytes(torch.randint(256, (32,), generator=draws).tolist()).hex()
        return make_key(self.graph, sets, owner="Eve", date="2026-01-01", secret=text, seed=self.seed)

    def judged(self, name: str, sets: Tensor, signs: Tensor, tries: int = 1) -> Forgery:
        key = self.key(sets)
        match = key_match(signs[:, list(key.features)], key.signs)
        chosen = _chosen_afterwards(signs, len(key.features))
        return Forgery(name, judged_index(matching_index(signs), self.null), match, chosen, tries)


def forgeries(
    graph: Graph, suspect: Suspect, *, sets: int, size: int, seed: int = 0, effort: Effort
) -> list[Forgery]:
    """Random tuples, a beam, node swaps, nodes that suit a fixed key, and grinding of secrets.

    Args:
        graph: the data.
        suspect: an unmarked model, asked as often as the forger likes.
        sets: T.
        size: n.
        seed: of everything that the forger draws.
        effort: what is spent.
    """
    forger = _prepared(graph, suspect, sets, size, seed, effort)
    random = _best_random(forger, sets, effort)
    beam = _beam(forger, sets, effort.width, lambda signs: float(matching_index(signs)))
    swapped, signs = _swapped(
        forger, forger.nodes[beam], lambda own: float(matching_index(own)), effort.swaps
    )
    wanted, features = _fixed_key(forger, forger.nodes[random])
    suits = _beam(forger, sets, effort.width, lambda own: float((own[:, features] == wanted).sum()))
    suited = forger.judged("nodes for a fixed key", forger.nodes[suits], forger.signs[suits])
    return [
        forger.judged("random", forger.nodes[random], forger.signs[random]),
        forger.judged("beam", forger.nodes[beam], forger.signs[beam]),
        forger.judged("node swap", swapped, signs),
        replace(suited, chosen=key_match(forger.signs[suits][:, features], wanted)),
        ground(forger, forger.nodes[beam], forger.signs[beam], effort.secrets),
    ]


def ground(forger: _Forger, sets: Tensor, signs: Tensor, secrets: int) -> Forgery:
    """The best of many secrets on the same sets."""
    first = forger.key(sets)
    marked = signs[:, list(first.features)]
    best, most = first, -1
    draws = rng.stream(forger.seed, "watermark.grinding")
    for raw in torch.randint(256, (secrets, 32), generator=draws, dtype=torch.uint8):
        key = replace(first, secret=bytes(raw.tolist()).hex())
        matches = int((marked == key.signs).sum())
        if matches > most:
            best, most = key, matches
    found = forger.judged("key grinding", sets, signs, secrets)
    return replace(found, match=key_match(marked, best.signs))


def _prepared(graph: Graph, suspect: Suspect, sets: int, size: int, seed: int, effort: Effort) -> _Forger:
    train, draws = split_nodes(graph.y, seed).train, rng.stream(seed, "watermark.forger")
    nodes = torch.cat([draw_sets(train, 1, size, draws) for _ in range(effort.candidates)])
    signs = torch.empty(len(nodes), graph.x.shape[1], dtype=torch.int8)  # first, as in `verification`
    for place, one in enumerate(nodes):  # candidates may share nodes
        signs[place] = signs_of_sets(suspect, graph, one.unsqueeze(0))[0]
    apart = draw_sets(train, min(100, len(train) // size), size, draws)
    null = null_of_index(signs_of_sets(suspect, graph, apart), sets, 1000, draws)
    return _Forger(graph, suspect, nodes, signs, null, seed)


def _best_random(forger: _Forger, sets: int, effort: Effort) -> Tensor:
    """[t] candidates: the best of as many tuples as the forger has secrets to try."""
    draws, best, most = rng.stream(forger.seed, "watermark.forger.tuples"), torch.zeros(0), -1
    for _ in range(effort.secrets):
        drawn = torch.randint(len(forger.nodes), (sets,), generator=draws)
        index = matching_index(forger.signs[drawn])
        if index > most and _disjoint(forger.nodes[drawn]):
            best, most = drawn, index
    if most < 0:
        raise _overlapping(forger, sets)
    return best


def _beam(forger: _Forger, sets: int, width: int, score: Score) -> Tensor:
    """[t] candidates: tuples that grow by one set, the best `width` kept at each size."""
    beam: list[list[int]] = [[]]
    for _ in range(sets):
        grown = {
            tuple(sorted((*one, place)))
            for one in beam
            for place in range(len(forger.nodes))
            if place not in one
        }
        ranked = sorted(grown, key=lambda one: (-score(forger.signs[list(one)]), one))
        beam = []
        for one in ranked:
            if _disjoint(forger.nodes[list(one)]):
                beam.append(list(one))
            if len(beam) == width:
                break
    if not beam:
        raise _overlapping(forger, sets)
    return torch.tensor(beam[0])


def _overlapping(forger: _Forger, sets: int) -> ConfigError:
    found, size = forger.nodes.shape
    return ConfigError(
        f"Among {found} candidates of {size} nodes the forger found no {sets} that share none: "
        "raise --candidates and --secrets, or lower --size."
    )


def _swapped(forger: _Forger, sets: Tensor, score: Score, swaps: int) -> tuple[Tensor, Tensor]:
    """([t, n], [t, f]): sets in which single nodes were exchanged while that raised the score."""
    draws, train = (
        rng.stream(forger.seed, "watermark.forger.swaps"),
        split_nodes(forger.graph.y, forger.seed).train,
    )
    sets, signs = sets.clone(), signs_of_sets(forger.suspect, forger.graph, sets)
    for _ in range(swaps):
        row, column, pick = (
            int(torch.randint(limit, (), generator=draws)) for limit in (*sets.shape, len(train))
        )
        if bool((sets == train[pick]).any()):
            continue
        changed = sets.clone()
        changed[row, column] = train[pick]
        changed[row] = changed[row].sort().values
        other = signs.clone()
        other[row] = signs_of_sets(forger.suspect, forger.graph, changed[row].unsqueeze(0))[0]
        if score(other) > score(signs):
            sets, signs = changed, other
    return sets, signs


def _fixed_key(forger: _Forger, sets: Tensor) -> tuple[Tensor, Tensor]:
    """([m] signs, [m] features) that were fixed before the sets: those of some other key."""
    key = forger.key(sets)
    return key.signs, torch.tensor(key.features)


def _chosen_afterwards(signs: Tensor, marks: int) -> KeyMatch:
    """The match of the features on which the sets agree most, with their signs."""
    counts = sign_counts(signs)
    features = counts.max(dim=1).values.sort(descending=True, stable=True).indices[:marks]
    key = torch.where(counts[features, 0] >= counts[features, 1], 1.0, -1.0).double()
    return key_match(signs[:, features], key)


def _disjoint(nodes: Tensor) -> bool:
    return len(torch.unique(nodes)) == nodes.numel()
