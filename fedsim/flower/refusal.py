"""Replies that would poison what a strategy computes: not finite, or with no examples behind them.

Stock strategies average whatever arrives: one NaN makes the model NaN, and weights that sum to 0 end the
run with a ZeroDivisionError.
"""

from collections.abc import Iterator

from flwr.app import MessageType, RecordDict
from flwr.common import Code

from fedsim.flower.array_type import is_finite

# (record, key) of the weight of a reply, where Flower's own strategies look for it; "" is any record
_EXAMPLES = (
    ("", "num-examples"),
    ("fitres.num_examples", "num_examples"),
    ("evaluateres.num_examples", "num_examples"),
)
_STATUSES = ("fitres.status", "evaluateres.status")
_WEIGHED = (MessageType.TRAIN, MessageType.EVALUATE)


def reason_to_refuse(message_type: str, content: RecordDict) -> str:
    """One line why a reply is not passed on, or an empty string.

    Replies to `train` and its named actions may hold no infinite or undefined number in an array; those and
    replies to `evaluate` may not claim zero or fewer examples, and a `NumPyClient`'s status has to be OK.
    Other replies pass as they are.
    """
    category = message_type.partition(".")[0]
    if category not in _WEIGHED:
        return ""
    for name, code, words in _bad_statuses(content):
        return f"The reply's {name} is {code}: {words}"
    for name, examples in _example_counts(content):
        if not examples > 0:
            return f"The reply's {name} is {examples}; it has no weight in a mean."
    return _first_not_finite(content) if category == MessageType.TRAIN else ""


def _bad_statuses(content: RecordDict) -> Iterator[tuple[str, str, str]]:
    for name in _STATUSES:
        status = content.config_records.get(name)
        if status is not None and status.get("code") != int(Code.OK.value):
            yield name, str(status.get("code")), str(status.get("message"))


def _example_counts(content: RecordDict) -> Iterator[tuple[str, float]]:
    for name, values in content.metric_records.items():
        for record, key in _EXAMPLES:
            value = values.get(key)
            if record in ("", name) and isinstance(value, int | float):
                yield f"{name}[{key!r}]", value


def _first_not_finite(content: RecordDict) -> str:
    for name, arrays in content.array_records.items():
        for key, array in arrays.items():
            if not is_finite(array):
                return f"The reply's array {name}[{key!r}] is not finite."
    return ""
