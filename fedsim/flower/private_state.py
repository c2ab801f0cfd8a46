"""A client's private tensors in its Flower context, kept in two phases.

A round leaves its new tensors pending; the next order names the round whose tensors the server accepted
for this client, and only then do they take the place of the last accepted ones. A refused client thus
goes on from where it was, as with `EngineFederation.commit`. Nothing here ever enters a message.
"""

from flwr.app import ConfigRecord, RecordDict

from fedsim.contracts import Tensors
from fedsim.errors import RoundError
from fedsim.flower.records import to_arrays, to_tensors

NEVER = 0  # no round of this client was accepted yet: its private tensors start afresh
EMPTY = -1  # the last accepted round left no private tensors
_MARKS, _COMMITTED, _PENDING = "fedsim.rounds", "fedsim.committed", "fedsim.pending"


def settle(state: RecordDict, run: int, accepted: int) -> Tensors | None:
    """The private tensors after round `accepted`; everything else is forgotten.

    Args:
        state: of the client's context; changed in place.
        run: the seed, so that two runs on the same nodes do not mix.
        accepted: a round, `NEVER` or `EMPTY`.

    Returns:
        The tensors, or None where none have been made yet.

    Raises:
        RoundError: this node does not hold that round's tensors (it was restarted, or swapped).
    """
    if accepted in (NEVER, EMPTY):
        _forget(state)
        return None if accepted == NEVER else {}
    marks = dict(state.config_records.get(_MARKS, {}))
    if marks.get("run") == run and marks.get("pending") == accepted:
        state[_COMMITTED] = state.array_records[_PENDING]
        marks["committed"] = accepted
    elif marks.get("run") != run or marks.get("committed") != accepted:
        raise RoundError(
            f"This node lost the private tensors that its client kept after round {accepted}: it was "
            "restarted or replaced. Start the run again."
        )
    state.pop(_PENDING, None)
    marks.pop("pending", None)
    state[_MARKS] = ConfigRecord(marks)
    return to_tensors(state.array_records[_COMMITTED])


def hold(state: RecordDict, run: int, round: int, private: Tensors) -> None:
    """Keep what a round returned until the server has decided; needs no place where it is empty."""
    if not private:
        return
    marks = dict(state.config_records.get(_MARKS, {}))
    state[_PENDING] = to_arrays(private)
    state[_MARKS] = ConfigRecord(marks | {"run": run, "pending": round})


def _forget(state: RecordDict) -> None:
    for name in (_MARKS, _COMMITTED, _PENDING):
        state.pop(name, None)
