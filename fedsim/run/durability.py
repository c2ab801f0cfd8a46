"""How long a backdoor lasts: from the success of every round to the figures that attacks are compared by.

Success counts poisoned test examples that get the wanted label, of those whose own label is another. The
floor is the same trigger's success in the same round on a clean run; it is subtracted where it says so.
"""

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

Record = Mapping[str, Any]

SMOOTHING = 5  # rounds, of the smoothed lifespan
HALF = 0.5
LATER = (25, 50, 100)
"""Rounds after the stop whose success is told by name."""


def milestones(window: tuple[int, int]) -> frozenset[int]:
    """The stop and the rounds after it that are told by name: measured whatever `evaluate.every` says."""
    return frozenset(window[1] + later for later in (0, *LATER))


def durability(records: Sequence[Record], window: tuple[int, int]) -> dict[str, Any]:
    """What is told of `attack_success` beside its last and best value.

    Args:
        records: of all finished rounds.
        window: first and last round of the attack, inclusive.

    Returns:
        `at_stop`: success after the window's last round; `plus_25`, `plus_50`, `plus_100`: so many rounds
        later; `auc50`: mean over the stop and the 50 rounds after it of success minus floor; `auc_rounds`:
        how many rounds that mean covers (51, unless the run ends before); `floor`: mean floor over them;
        `floor_at_stop`. None where a round or a floor was not measured.
    """
    stop = window[1]
    success, floor = _series(records, "attack_success"), _series(records, "attack_floor")
    after = [at for at in range(stop, stop + 51) if at in success]
    both = [at for at in after if at in floor]
    return {
        "at_stop": success.get(stop),
        **{f"plus_{later}": success.get(stop + later) for later in LATER},
        "auc50": fmean(success[at] - floor[at] for at in both) if both else None,
        "auc_rounds": len(both),
        "floor": fmean(floor[at] for at in both) if both else None,
        "floor_at_stop": floor.get(stop),
    }


def lifespan(records: Sequence[Record], window: tuple[int, int]) -> dict[str, Any] | None:
    """Rounds from the window's last until success is under one half.

    Returns:
        `rounds`: to the first measured round under 0.5, 0 if the stop itself is; `smoothed`: the same of the
        mean over the last five rounds, none before the stop among them; `still_alive`: by the last round
        success had not been under one half, so that `rounds` is a lower bound; `smoothed_still_alive`: the
        same of the mean and of `smoothed`. None where success was not measured.
    """
    stop = window[1]
    success = {at: value for at, value in _series(records, "attack_success").items() if at >= stop}
    if not success:
        return None
    rounds = sorted(success)
    smooth = {at: fmean([success[one] for one in rounds if at - SMOOTHING < one <= at]) for at in rounds}
    raw, smoothed = _first_under(success, rounds), _first_under(smooth, rounds)
    lived = rounds[-1] - stop
    return {
        "rounds": lived if raw is None else raw - stop,
        "smoothed": lived if smoothed is None else smoothed - stop,
        "still_alive": raw is None,
        "smoothed_still_alive": smoothed is None,
    }


def detector(records: Sequence[Record]) -> dict[str, Any] | None:
    """The rule as a detector of malicious clients, over all rounds of the window.

    Returns:
        `precision`, `recall`, `f1`, `false_positive_rate` of the summed counts, the counts themselves, and
        `weight_kept`, the mean share of weight that malicious clients kept. None where the rule weighs
        nobody. Precision is None where nobody was flagged; precision, recall
        and F1 are None where nobody was hostile.
    """
    rounds = [record["attack"] for record in records if record.get("attack")]
    counted = [one["detector"] for one in rounds if one["detector"] is not None]
    if not counted:
        return None
    total = {name: sum(one[name] for one in counted) for name in counted[0]}
    hits, false_alarms = total["true_positives"], total["false_positives"]
    missed, clear = total["false_negatives"], total["true_negatives"]
    kept = [one["weight_kept"] for one in rounds if one["weight_kept"] is not None]
    hostile = hits + missed > 0
    return {
        "precision": _ratio(hits, hits + false_alarms) if hostile else None,
        "recall": _ratio(hits, hits + missed),
        "f1": _ratio(2 * hits, 2 * hits + false_alarms + missed) if hostile else None,
        "false_positive_rate": _ratio(false_alarms, false_alarms + clear),
        "weight_kept": fmean(kept) if kept else None,
        **total,
    }


def _series(records: Sequence[Record], name: str) -> dict[int, float]:
    found = ((record["round"], record["metrics"].get(name)) for record in records)
    return {at: value for at, value in found if value is not None}


def _first_under(values: Mapping[int, float], rounds: Sequence[int]) -> int | None:
    return next((at for at in rounds if values[at] < HALF), None)


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole else None
