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
UNKNOWN = -2  # the server was resumed and cannot tell; only a client that keeps nothing may go on
STORED = -3  # the driver keeps them, and puts them into the context for each order
_NOTHING = (NEVER, EMPTY, UNKNOWN)
_MARKS, _COMMITTED, _PENDING = "fedsim.rounds", "fedsim.committed", "fedsim.pending"


def accepted_tensors(state: RecordDict, run: int, accepted: int) -> Tensors | None:
    """The private tensors after round `accepted`; changes nothing.

    Args:
        state: of the client's context.
        run: the seed, so that two runs on the same nodes do not mix.
        accepted: a round, `NEVER`, `EMPTY` or `UNKNOWN`.

    Returns:
        The tensors, or None where none have been made yet.

    Raises:
        RoundError: this node does not hold that round's tensors (it was restarted, or swapped).
    """
    if accepted in _NOTHING:
        return {} if accepted == EMPTY else None
    return to_tensors(state.array_records[_place(state, run, accepted)])


def settle(state: RecordDict, run: int, accepted: int) -> None:
    """Keep round `accepted` and forget every other, before a new round begins.

    Raises:
        RoundError: as `accepted_tensors`.
    """
    kept = None
    if accepted not in _NOTHING:
        kept = state.array_records[_place(state, run, accepted)]
    for name in (_MARKS, _COMMITTED, _PENDING):
        state.pop(name, None)
    if kept is not None:
        state[_COMMITTED] = kept
        state[_MARKS] = ConfigRecord({"run": run, "committed": accepted})


def hold(state: RecordDict, run: int, round: int, private: Tensors) -> None:
    """Keep what a round returned until the server has decided; needs no place where it is empty."""
    if not private:
        return
    marks = dict(state.config_records.get(_MARKS, {}))
    state[_PENDING] = to_arrays(private)
    state[_MARKS] = ConfigRecord(marks | {"run": run, "pending": round})


def committed_state(run: int, mark: int, tensors: Tensors) -> RecordDict:
    """A context's state whose accepted tensors are these, under a mark of the driver's choice."""
    return RecordDict({_COMMITTED: to_arrays(tensors), _MARKS: ConfigRecord({"run": run, "committed": mark})})


def pending_tensors(state: RecordDict, run: int, round: int) -> Tensors:
    """What `hold` left in a state.

    Raises:
        RoundError: the state holds no such tensors.
    """
    return to_tensors(state.array_records[_place(state, run, round)])


def _place(state: RecordDict, run: int, accepted: int) -> str:
    """The record that holds a round's tensors; pending comes first, as it is the younger."""
    marks = state.config_records.get(_MARKS, ConfigRecord())
    if marks.get("run") == run and marks.get("pending") == accepted:
        return _PENDING
    if marks.get("run") == run and marks.get("committed") == accepted:
        return _COMMITTED
    raise RoundError(
        f"This node lost the private tensors that its client kept after round {accepted}: it was restarted "
        "or replaced. Start the run again."
    )
