"""FLTrust: updates count as far as they point where the server's own training points.

Cao, Fang, Liu and Gong, "FLTrust: Byzantine-robust Federated Learning via Trust Bootstrapping", NDSS 2021,
section IV: trust scores, normalised magnitudes, and their weighted mean; the global learning rate is 1.

Without a trusted update the rule would be a plain mean, so none is refused. If no client points to the
server's side, the paper's equation divides by zero; then all weights are 0, and the model stays.
BatchNorm's running statistics count in no length or angle; they are cut, but never stretched
(see `strategies.layers.average_statistics`).
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedsim.contracts import Cohort, Decision, Matrix, Server, Tensors, Vector
from fedsim.errors import RoundError
from strategies.layers import average_statistics
from strategies.rows import combination, measured, norms, products, require_cohort


def trust_weights(updates: Matrix, trusted: Vector, *, kept: Tensor | None = None) -> tuple[Vector, Vector]:
    """How far each row is trusted, and what brings it to the length of the trusted one.

    Args:
        updates: [n, d], the g_i.
        trusted: [d], g_0, not zero.
        kept: [d] bool, the columns that count; None: all.

    Returns:
        [n] float64 each: TS_i / sum(TS), where TS_i = max(0, cos(g_i, g_0)), all zeros if no TS is positive;
        and |g_0| / |g_i|, or 0 for a row of zeros.
    """
    if kept is not None:
        trusted = torch.where(kept.to(trusted.device), trusted, 0.0)
    lengths, length = norms(updates, kept=kept), torch.linalg.vector_norm(trusted, dtype=torch.float64)
    inverse = torch.where(lengths > 0, 1 / lengths, 0.0)
    trust = (products(updates, trusted) * inverse / length).clamp(min=0)
    total = trust.sum()
    return (trust / total if total > 0 else trust), length * inverse


@dataclass(frozen=True, kw_only=True)
class FLTrust:
    """The mean of updates cut or stretched to the trusted one's length, weighted by trust."""

    needs_trusted: ClassVar[bool] = True

    def init(self, model: Vector) -> Tensors:
        """No state."""
        return {}

    def step(self, state: Tensors, cohort: Cohort, server: Server) -> tuple[Tensors, Decision]:
        """The mean; a client's weight is what its row was multiplied by.

        Raises:
            RoundError: fewer than 1 reply, no trusted data, or a trusted update of length 0.
        """
        require_cohort("fltrust", cohort, 1, "allow fewer failures")
        if server.trusted is None:
            raise RoundError("fltrust needs data of the server's own: set federation.trusted.")
        trusted = server.trusted.update().to(cohort.updates.device)
        if not bool(measured(trusted, cohort.layout.trained).any()):
            raise RoundError(
                f"Round {cohort.round}: the server's training on its trusted data changed nothing, so that "
                "fltrust has no direction: raise federation.trusted or client.optimizer.learning_rate."
            )
        trust, stretch = trust_weights(cohort.updates, trusted, kept=cohort.layout.trained)
        update = combination(cohort.updates, trust * stretch).to(cohort.updates.dtype)
        average_statistics(update, cohort, trust * stretch.clamp(max=1))
        return state, Decision(update=update, weights=trust * stretch, trust=trust)
