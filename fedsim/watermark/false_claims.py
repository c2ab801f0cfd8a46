"""How often an owner would claim a model that carries no mark.

Sets and key are drawn anew for every claim: the explanations of one and the same set agree between models
that were trained apart, so that a single unlucky key would be counted many times.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedsim import rng
from fedsim.watermark.key import Key, make_key
from fedsim.watermark.statistics import judged_index, key_match, matching_index, null_of_index
from fedsim.watermark.subgraphs import Graph, draw_sets, split_nodes
from fedsim.watermark.suspect import Suspect
from fedsim.watermark.verification import signs_of_sets

LEVELS = (0.01, 0.05, 0.1)


@dataclass(frozen=True)
class Claims:
    """p-values of claims on unmarked models: [models, keys] each.

    Attributes:
        key: of the statistic that decides.
        index: of the matching index, by a normal with its empirical null's moments; None: not measured.
    """

    key: Tensor
    index: Tensor | None


@dataclass(frozen=True)
class Share:
    """Claims below one level.

    Attributes:
        level: of the test.
        share: of all claims with p at most the level.
        error: standard error of the share, of means of models (claims on one model are not independent).
    """

    level: float
    share: float
    error: float

    @property
    def holds(self) -> bool:
        """Is the share within three standard errors of the level, or below?"""
        return self.share <= self.level + 3 * self.error


def share_below(p: Tensor, level: float) -> Share:
    """The share of p-values [models, keys] at most `level`.

    The error is that of the models' means, but no less than of as many independent claims at that level.
    """
    means = (p <= level).double().mean(dim=1)
    clustered = float(means.std()) / math.sqrt(len(means)) if len(means) > 1 else 0.0
    independent = math.sqrt(level * (1 - level) / p.numel())
    return Share(level, float(means.mean()), max(clustered, independent))


def fresh_keys(
    graph: Graph, *, keys: int, sets: int, size: int, seed: int, marks: int | None = None
) -> list[Key]:
    """Keys of unlucky owners: each with a secret and sets of its own, of training nodes.

    Args:
        graph: the data.
        keys: how many.
        sets: T of each.
        size: n of a set.
        seed: of all of them.
        marks: M; None: by the paper's rule.
    """
    made = []
    nodes = split_nodes(graph.y, seed).train
    for number in range(keys):
        draws = rng.stream(seed, "watermark.audit", number)
        secret = bytes(torch.randint(256, (32,), generator=draws).tolist()).hex()
        drawn = draw_sets(nodes, sets, size, draws)
        made.append(
            make_key(graph, drawn, owner="audit", date="2026-01-01", secret=secret, seed=seed, marks=marks)
        )
    return made


def claims(
    graph: Graph,
    suspects: Iterable[Suspect],
    *,
    keys: int,
    sets: int,
    size: int,
    seed: int = 0,
    marks: int | None = None,
    null_sets: int = 0,
) -> Claims:
    """Claim every suspect with fresh keys.

    Args:
        graph: the data.
        suspects: unmarked models; they may be trained one by one while this runs.
        keys: claims on each.
        sets: T.
        size: n.
        seed: of sets and keys; every model has its own.
        marks: M.
        null_sets: other sets for the null of the matching index, once per model; 0: not measured.
    """
    of_key, of_index = [], []
    for number, suspect in enumerate(suspects):
        own = rng.derive(seed, "watermark.audit.model", number) % 2**31
        made = fresh_keys(graph, keys=keys, sets=sets, size=size, seed=own, marks=marks)
        signs = [signs_of_sets(suspect, graph, key.nodes) for key in made]
        of_key.append(p_values(made, signs))
        if null_sets:
            nodes = split_nodes(graph.y, own).train
            null = draw_sets(nodes, null_sets, size, rng.stream(own, "watermark.null"))
            index = null_of_index(
                signs_of_sets(suspect, graph, null), sets, 1000, rng.stream(own, "watermark.tuples")
            )
            of_index.append([judged_index(matching_index(one), index).p for one in signs])
    found = torch.tensor(of_index, dtype=torch.float64) if null_sets else None
    return Claims(torch.tensor(of_key, dtype=torch.float64), found)


def p_values(keys: Sequence[Key], signs: Sequence[Tensor]) -> list[float]:
    """The exact p of each key with the signs [T, F] of its sets."""
    return [key_match(one[:, list(key.features)], key.signs).p for key, one in zip(keys, signs, strict=True)]
