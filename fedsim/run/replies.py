"""What came back from a round's clients: which updates are used, which are refused, and when to give up."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from fedsim.contracts import Cohort, Failure, LocalEvaluation, LocalUpdate, Matrix, Tensors, Vector
from fedsim.errors import RoundError
from fedsim.params import Layout


class TooManyFailures(RoundError):
    """More clients failed than `failures.max_failed_fraction` allows; carries the ledger of the round."""

    def __init__(self, message: str, failures: Sequence[Failure]) -> None:
        super().__init__(message)
        self.failures = tuple(failures)


@dataclass(frozen=True)
class Sorted:
    """Replies of one round: accepted ones in partition order, and the ledger's entries."""

    accepted: tuple[LocalUpdate, ...]
    failures: tuple[Failure, ...]


def sort_replies(replies: Sequence[LocalUpdate | Failure], layout: Layout, round: int) -> Sorted:
    """Refuse updates that are not finite, are misshapen, or stand for no examples."""
    accepted: list[LocalUpdate] = []
    failures: list[Failure] = []
    fine = _all_finite([reply.update for reply in replies if isinstance(reply, LocalUpdate)])
    for reply in replies:
        if isinstance(reply, Failure):
            failures.append(reply)
        elif fault := _fault(reply, layout, finite=fine):
            failures.append(Failure(round, reply.partition, None, "refused", fault))
        else:
            accepted.append(reply)
    accepted.sort(key=lambda reply: reply.partition)
    return Sorted(tuple(accepted), tuple(failures))


def _all_finite(updates: Sequence[Vector]) -> bool:
    """Is every value of all updates known to be finite? Where a sum is not, it may still have overflowed."""
    rows = _side_by_side(updates)
    if rows is not None:
        return bool(rows.sum(dim=1).isfinite().all())
    return all(math.isfinite(float(update.sum())) for update in updates)


def _side_by_side(updates: Sequence[Vector]) -> Matrix | None:
    """[n, d], a view of updates that are all the rows of one matrix in their order; None if they are not."""
    whole = updates[0]._base if updates else None
    if whole is None or whole.shape != (len(updates), *updates[0].shape) or not whole.is_contiguous():
        return None
    size, first = updates[0].numel(), whole.storage_offset()
    for place, update in enumerate(updates):
        if update._base is not whole or update.storage_offset() != first + place * size:
            return None
        if update.shape != updates[0].shape or not update.is_contiguous():
            return None
    return whole


def _fault(reply: LocalUpdate, layout: Layout, *, finite: bool) -> str | None:
    """Why a reply cannot be used, or None; `finite`: its update is known to be."""
    if reply.update.shape != (layout.size,):
        return f"the update has shape {tuple(reply.update.shape)}, wanted ({layout.size},)"
    if reply.update.dtype != layout.dtype:
        return f"the update has type {reply.update.dtype}, wanted {layout.dtype}"
    bad = 0 if finite else int((~torch.isfinite(reply.update)).sum())
    if bad:
        return f"the update is not finite in {bad} of {layout.size} values"
    if reply.examples <= 0:
        return f"the update stands for {reply.examples} examples"
    for name, shape, dtype in layout.integers:
        found = reply.integers.get(name)
        if found is None or tuple(found.shape) != shape or found.dtype != dtype:
            return f"integer tensor {name!r} is missing or is not of shape {shape} and type {dtype}"
    for name, tensor in reply.uplink.items():
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            return f"the uplink tensor {name!r} is not finite"
    return None


def enforce_policy(round: int, asked: int, failures: Sequence[Failure], allowed: float, what: str) -> None:
    """Let a run go on only while few enough clients fail, and never with none left.

    Args:
        round: counts from 1.
        asked: clients that were asked.
        failures: the round's ledger.
        allowed: `failures.max_failed_fraction`.
        what: `train` or `evaluate`, for the message.

    Raises:
        TooManyFailures: naming the clients and the first fault.
    """
    failed = len(failures)
    if failed < asked and failed / asked <= allowed:  # 0.29 * 100 is below 29 in binary
        return
    first = failures[0]
    who = ", ".join(str(failure.partition) for failure in failures[:10]) + (", ..." if failed > 10 else "")
    rule = (
        "no reply is left"
        if failed >= asked
        else f"more than failures.max_failed_fraction = {allowed:g} allows; raise it to go on without them"
    )
    raise TooManyFailures(
        f"Round {round}: {failed} of {asked} clients failed to {what} (partitions {who}), {rule}. "
        f"First: {first.kind}: {first.message}",
        failures,
    )


def cohort_of(round: int, accepted: Sequence[LocalUpdate], layout: Layout) -> Cohort:
    """The accepted replies as rows.

    Raises:
        RoundError: clients sent different uplink tensors beside their updates.
    """
    names = list(accepted[0].uplink)
    for reply in accepted[1:]:
        if list(reply.uplink) != names:
            raise RoundError(
                f"Round {round}: clients {accepted[0].partition} and {reply.partition} sent different uplink "
                f"tensors: {names} and {list(reply.uplink)}."
            )
    updates = [reply.update for reply in accepted]
    rows = _side_by_side(updates)
    return Cohort(
        round=round,
        partitions=tuple(reply.partition for reply in accepted),
        updates=torch.stack(updates) if rows is None else rows,
        examples=torch.tensor([reply.examples for reply in accepted], dtype=torch.int64),
        layout=layout,
        extras={name: torch.stack([reply.uplink[name] for reply in accepted]) for name in names},
    )


def integers_of_largest(accepted: Sequence[LocalUpdate]) -> Tensors:
    """Integer tensors (BatchNorm's counters) of the client with most examples; ties: the lowest partition."""
    largest = max(accepted, key=lambda reply: (reply.examples, -reply.partition))
    return dict(largest.integers)


def split_evaluations(
    replies: Sequence[LocalEvaluation | Failure],
) -> tuple[list[LocalEvaluation], list[Failure]]:
    """Measurements in partition order, and the ledger's entries."""
    measured = sorted(
        (reply for reply in replies if isinstance(reply, LocalEvaluation)), key=lambda reply: reply.partition
    )
    return measured, [reply for reply in replies if isinstance(reply, Failure)]
