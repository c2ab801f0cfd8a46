import pytest

from fedsim.engine.protocols import Incident
from fedsim.run.incidents import SPLIT, UNSTACKED, device_of, events_of, spelt, why_not_reproducible


class Federation:
    device = "cuda:1"

    def __init__(self):
        self.incidents = [Incident(3, 1, "died", (4, 5), "split", "gone")]

    def take_incidents(self):
        taken, self.incidents = self.incidents, []
        return taken


def test_incidents_become_values_once():
    federation = Federation()
    (event,) = events_of(federation)
    assert event == {
        "round": 3,
        "worker": 1,
        "what": "died",
        "clients": [4, 5],
        "remedy": "split",
        "message": "gone",
    }
    assert events_of(federation) == []
    assert device_of(federation) == "cuda:1"


def test_a_federation_that_knows_nothing_has_no_events():
    assert (events_of(object()), device_of(object())) == ([], None)


@pytest.mark.parametrize(
    ("failures", "detours", "remedies", "reasons"),
    [
        ((), (), ("retried", "replaced"), []),
        (("refused", "exception"), (False,), (), []),
        (("died", "deadline", "died"), (), ("given up",), ["deadline", "died"]),
        ((), (True,), ("split",), [UNSTACKED, SPLIT]),
    ],
)
def test_what_makes_a_run_irreproducible(failures, detours, remedies, reasons):
    found = why_not_reproducible(
        [{"kind": kind} for kind in failures],
        [{"failed": failed} for failed in detours],
        [{"remedy": remedy} for remedy in remedies],
    )
    assert found == reasons


def test_an_event_in_a_line():
    event = {"round": 1, "worker": None, "what": "died", "clients": list(range(12)), "remedy": "replaced"}
    line = spelt(event | {"message": "left"})
    assert line == "round 1, a SuperNode with clients 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, ...: died, replaced: left"
    assert spelt(event | {"worker": 2, "clients": [], "message": "x"}).startswith("round 1, worker 2: died")
