"""What comes back from a client: an update, an evaluation, or a failure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from fedsim.contracts.training import Tensors, Vector
from fedsim.metrics import Sum


@dataclass(frozen=True)
class Detour:
    """Why a client that should have run stacked (T2) ran by itself (T1).

    Attributes:
        reason: one line.
        failed: an exception in the stacked run; else its program cannot be stacked, in any run.
    """

    reason: str
    failed: bool


@dataclass(frozen=True)
class LocalUpdate:
    """One client's result of a round.

    Attributes:
        partition: the client.
        update: [d], shared tensors after minus before, in the layout's type.
        integers: integer tensors of the shared model after training.
        examples: size of the training split; the client's weight in a mean.
        steps: optimiser steps taken.
        uplink: named tensors beside the update.
        metrics: merged statistics of the training, such as `train_loss`.
        private: the private tensors to keep; never sent to the server.
        detour: set where it was not computed the way that was asked.
    """

    partition: int
    update: Vector
    integers: Tensors
    examples: int
    steps: int
    uplink: Tensors
    metrics: Mapping[str, Sum]
    private: Tensors
    detour: Detour | None = None


@dataclass(frozen=True)
class LocalEvaluation:
    """One client's statistics over its own splits: `test_accuracy`, `val_loss`, and so on."""

    partition: int
    metrics: Mapping[str, Sum]


@dataclass(frozen=True)
class Failure:
    """A ledger entry: what went wrong, where, and how it looked.

    Attributes:
        round: counts from 1.
        partition: the client, or None where a whole worker is concerned.
        worker: the worker's number, or None for the driver.
        kind: `exception` in a client, `died` (its process ended), `deadline`, or `refused` (a reply
            that is not finite, misshapen, or has no examples).
        message: one line.
        traceback: the whole of it, or an empty string.
    """

    round: int
    partition: int | None
    worker: int | None
    kind: Literal["exception", "died", "deadline", "refused"]
    message: str
    traceback: str = ""
