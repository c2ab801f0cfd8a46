"""FoolsGold: clients whose histories point the same way are sybils, and lose their weight.

Fung, Yoon and Beschastnikh, "The Limitations of Federated Learning in Sybil Settings", RAID 2020,
Algorithm 1.

As in the paper, histories are compared on the indicative features, the output layer; only these columns
are kept, for the partitions seen so far. `features = "all"` keeps all trained values: partitions x d of
state. Where the paper adds the sum of the weighted updates, this rule divides it by n, as the authors'
code does; without it a cohort without sybils would move n times as far as under the mean. The logit of a
weight of exactly 1 is infinite and is cut to 1, where that code takes the logit of 0.99, which is cut to
1 as well. A cohort in which every history points exactly the same way has nobody to trust: all weights
are 0, and the model stays.
"""

from dataclasses import dataclass
from typing import Literal

import torch

from fedsim.contracts import Cohort, Decision, Matrix, Server, Tensors, Vector
from fedsim.errors import RoundError
from strategies.layers import output_layer
from strategies.rows import combination, cosine_distances, require, require_cohort

SAME = 1e-12
"""1 - cos of histories that differ by the rounding of float32 alone: an angle of 1.4e-6."""


def sybil_weights(histories: Matrix, confidence: float = 1.0) -> Vector:
    """Each client's learning rate, from the directions of the histories.

    Args:
        histories: [n, h], sums of the clients' updates.
        confidence: kappa, the slope of the logit.

    Returns:
        [n] float64 in [0, 1]: alpha.
    """
    similar = 1 - cosine_distances(histories)
    similar.fill_diagonal_(0.0)  # so that the largest is never below 0: opposite is as good as unrelated
    largest = similar.max(dim=1).values
    # Pardoning: an honest client that resembles a sybil is less similar than the sybils among themselves.
    lower = largest[:, None] < largest[None, :]
    pardoned = torch.where(lower, similar * largest[:, None] / largest[None, :], similar)
    alpha = (1 - pardoned.max(dim=1).values).clamp(0, 1)
    if alpha.max() <= SAME:  # else rounding would choose whom to trust
        return torch.zeros_like(alpha)
    return (confidence * (torch.logit(alpha / alpha.max()) + 0.5)).clamp(0, 1)


@dataclass(frozen=True, kw_only=True)
class FoolsGold:
    """The sum of the updates, each times its client's learning rate, over n.

    Attributes:
        features: the columns whose history is kept and compared: of the output layer, or all.
        confidence: kappa, the slope of the logit.
    """

    features: Literal["output", "all"] = "output"
    confidence: float = 1.0

    def __post_init__(self) -> None:
        """Refuse a slope that gives every client the same weight."""
        require(0 < self.confidence < torch.inf, f"confidence must be above 0, found {self.confidence}")

    def init(self, model: Vector) -> Tensors:
        """`partitions` [p] int64, ascending, and `history` [p, h]; none before round 1."""
        return {"partitions": torch.zeros(0, dtype=torch.int64), "history": model.new_zeros(0, 0)}

    def step(self, state: Tensors, cohort: Cohort, server: Server) -> tuple[Tensors, Decision]:
        """The weighted sum; each client weighs alpha / n.

        Raises:
            RoundError: fewer than 1 reply, or a model without an output layer.
        """
        require_cohort("foolsgold", cohort, 1, "allow fewer failures")
        remembered = remember(state, cohort.partitions, self._seen(cohort))
        places = torch.searchsorted(remembered["partitions"], torch.tensor(cohort.partitions))
        alpha = sybil_weights(remembered["history"][places], self.confidence)
        weights = alpha / len(cohort.partitions)
        update = combination(cohort.updates, weights).to(cohort.updates.dtype)
        return remembered, Decision(update=update, weights=weights)

    def _seen(self, cohort: Cohort) -> Matrix:
        """[n, h], the columns that are compared."""
        if self.features == "all":
            kept = cohort.layout.trained
            return cohort.updates if kept is None else cohort.updates[:, kept.to(cohort.updates.device)]
        return torch.cat([cohort.updates[:, piece.columns] for piece in output_layer(cohort.layout)], dim=1)


def remember(state: Tensors, partitions: tuple[int, ...], seen: Matrix) -> dict[str, torch.Tensor]:
    """The histories with this round's rows added.

    Args:
        state: `partitions` [p], ascending, and `history` [p, h].
        partitions: n numbers, ascending.
        seen: [n, h].
    """
    known, history = state["partitions"], state["history"].to(seen.device)
    if len(known) and history.shape[1] != seen.shape[1]:
        raise RoundError(
            f"foolsgold remembers {history.shape[1]} values of each client, but this round's replies "
            f"have {seen.shape[1]}: start anew."
        )
    everyone = torch.tensor(sorted({*known.tolist(), *partitions}), dtype=torch.int64)
    longer = seen.new_zeros(len(everyone), seen.shape[1])
    longer[torch.searchsorted(everyone, known)] = history.reshape(len(known), seen.shape[1])
    longer[torch.searchsorted(everyone, torch.tensor(partitions))] += seen
    return {"partitions": everyone, "history": longer}
