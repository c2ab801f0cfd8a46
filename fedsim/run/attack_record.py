"""What a round under attack looked like: the rule as a detector, and how far the malicious rows stood out."""

from typing import Any

import torch
from torch import Tensor

from fedsim.contracts import Cohort, Decision, Vector

LIVE = 1e-6
"""A rule whose update differs from both plain means by less than this, relatively, did nothing."""


def attack_record(cohort: Cohort, malicious: list[int], decision: Decision) -> dict[str, Any]:
    """The round's entry `attack`, JSON values.

    Args:
        cohort: as the rule saw it, before any pre-aggregation.
        malicious: its malicious rows.
        decision: what the rule made of it.
    """
    belief = decision.weights if decision.trust is None else decision.trust
    aggregate = decision.update if decision.aggregate is None else decision.aggregate
    kept = cohort.layout.trained
    return {
        "malicious": [cohort.partitions[place] for place in malicious],
        "detector": detector_counts(cohort, malicious, belief),
        "weight_kept": _weight_kept(malicious, belief),
        "differs_from_mean": differs_from_mean(cohort, aggregate),
        **_geometry(cohort.updates if kept is None else cohort.updates[:, kept], malicious),
    }


def flagged(cohort: Cohort, weights: Tensor) -> Tensor:
    """[n] bool: whose share of the rule's whole weight is less than half of what a plain mean would give.

    That is half of the smaller of 1 / n and the client's share of all examples, so that weighing by
    examples flags nobody, whatever the sizes; nor does a rule that shortens everybody alike. A rule that
    leaves no weight at all flags everybody.
    """
    examples = cohort.examples.double() / cohort.examples.sum()
    usual = examples.clamp(max=1 / len(cohort.partitions))
    kept = weights.detach().double().cpu()
    return kept / kept.sum().clamp(min=torch.finfo(torch.float64).tiny) < 0.5 * usual


def detector_counts(cohort: Cohort, malicious: list[int], weights: Tensor | None) -> dict[str, int] | None:
    """True and false positives and negatives of the rule as a detector; None where it weighs nobody."""
    if weights is None:
        return None
    found, truth = flagged(cohort, weights), torch.zeros(len(cohort.partitions), dtype=torch.bool)
    truth[malicious] = True
    return {
        "true_positives": int((found & truth).sum()),
        "false_positives": int((found & ~truth).sum()),
        "false_negatives": int((~found & truth).sum()),
        "true_negatives": int((~found & ~truth).sum()),
    }


def _weight_kept(malicious: list[int], weights: Tensor | None) -> float | None:
    """Share of the rule's whole weight that malicious clients kept."""
    if weights is None or not malicious:
        return None
    whole = float(weights.double().sum())
    return float(weights.double()[malicious].sum()) / whole if whole > 0 else 0.0


def differs_from_mean(cohort: Cohort, update: Vector) -> float:
    """Distance to the nearer of the two plain means (by examples, and even), relative to that mean."""
    rows, update = cohort.updates, update.detach().double().cpu()
    counts = cohort.examples.double()
    nearest = float("inf")
    for shares in (counts / counts.sum(), torch.full_like(counts, 1 / len(counts))):
        mean = _weighted(rows, shares)
        scale = max(float(torch.linalg.vector_norm(mean)), torch.finfo(torch.float32).tiny)
        nearest = min(nearest, float(torch.linalg.vector_norm(update - mean)) / scale)
    return nearest


def _weighted(rows: Tensor, shares: Tensor) -> Tensor:
    mean = torch.zeros(rows.shape[1], dtype=torch.float64)
    for row, share in zip(rows, shares.tolist(), strict=True):
        mean.add_(row.cpu(), alpha=share)
    return mean


def _geometry(rows: Tensor, malicious: list[int]) -> dict[str, float | None]:
    """Mean norms of trained values, and the mean cosine of malicious updates to the benign mean."""
    benign = [place for place in range(len(rows)) if place not in set(malicious)]
    norms = torch.stack([torch.linalg.vector_norm(row.double()) for row in rows]).cpu()
    found: dict[str, float | None] = {"malicious_norm": None, "benign_norm": None, "cosine_to_benign": None}
    if benign:
        found["benign_norm"] = float(norms[benign].mean())
    if malicious:
        found["malicious_norm"] = float(norms[malicious].mean())
    if benign and malicious:
        mean = _weighted(rows[benign], torch.full((len(benign),), 1 / len(benign), dtype=torch.float64))
        cosines = [torch.cosine_similarity(rows[place].double().cpu(), mean, dim=0) for place in malicious]
        found["cosine_to_benign"] = float(torch.stack(cosines).mean())
    return found
