import pytest
import torch
from flwr.app import RecordDict

from fedsim.errors import RoundError
from fedsim.flower.overhead import RECORD, Work, overhead, told
from fedsim.flower.private_places import InStore, OnNodes
from fedsim.flower.private_state import EMPTY, NEVER, STORED, UNKNOWN, accepted_tensors, hold, settle
from fedsim.run.private_store import PrivateStore

SEED = 9


class Contexts:
    def __init__(self):
        self.states = {}

    def state_of(self, partition):
        return self.states[partition]

    def set_state(self, partition, state):
        self.states[partition] = state


@pytest.fixture
def grid():
    return Contexts()


@pytest.fixture
def place(grid, tmp_path):
    return InStore(PrivateStore(tmp_path / "private", limit=0), grid, SEED)


def train(place, grid, partition, round, tensors):
    """What a node does with an order: settle, work, hold."""
    mark = place.mark(partition, round)
    before = accepted_tensors(grid.state_of(partition), SEED, mark)
    settle(grid.state_of(partition), SEED, mark)
    hold(grid.state_of(partition), SEED, round, tensors)
    place.returned(partition, round, bool(tensors))
    return mark, before


def test_a_client_that_never_trained_starts_afresh_and_one_that_keeps_nothing_does_not(place, grid):
    assert train(place, grid, 0, 1, {}) == (NEVER, None)
    place.commit([0])
    assert train(place, grid, 0, 2, {}) == (EMPTY, {})


def test_tensors_of_any_type_come_back_after_a_commit_alone(place, grid):
    kept = {"b": torch.tensor([1.5, -2.0], dtype=torch.bfloat16), "a": torch.tensor(True)}
    train(place, grid, 0, 1, kept)
    place.commit([])  # refused
    assert train(place, grid, 0, 2, kept) == (NEVER, None)
    place.commit([0])
    assert list(grid.state_of(0)) == []
    mark, found = train(place, grid, 0, 3, {})
    assert mark == STORED
    assert {name: value.dtype for name, value in found.items()} == {"a": torch.bool, "b": torch.bfloat16}
    assert all(torch.equal(found[name], kept[name]) for name in kept)


def test_an_evaluation_changes_nothing_and_leaves_nothing_behind(place, grid):
    train(place, grid, 0, 1, {"x": torch.ones(2)})
    place.commit([0])
    assert accepted_tensors(grid.state_of(0) or RecordDict(), SEED, EMPTY) == {}
    mark = place.mark(0, 1)
    assert torch.equal(accepted_tensors(grid.state_of(0), SEED, mark)["x"], torch.ones(2))
    place.rest([0])
    assert list(grid.state_of(0)) == []
    assert place.mark(0, 2) == STORED


def test_another_seed_cannot_read_what_lies_on_a_node(place, grid):
    train(place, grid, 0, 1, {"x": torch.ones(2)})
    place.commit([0])
    mark = place.mark(0, 2)
    with pytest.raises(RoundError, match="lost the private tensors"):
        accepted_tensors(grid.state_of(0), SEED + 1, mark)


def test_nodes_of_a_resumed_run_are_unknown_until_they_were_accepted_again():
    place = OnNodes()
    assert place.mark(0, 5) == UNKNOWN
    place.returned(0, 5, keeps=False)
    place.returned(1, 5, keeps=True)
    place.commit([0])
    assert (place.mark(0, 6), place.mark(1, 6)) == (EMPTY, UNKNOWN)


def reply(process, computing, converting):
    record = told(Work(computing, converting))
    record["process"] = process
    return RecordDict({RECORD: record})


def test_the_busiest_process_counts_and_the_rest_is_waiting():
    replies = [reply("a", 1.0, 0.1), reply("a", 2.0, 0.2), reply("b", 2.5, 0.4)]
    found = overhead(5.0, 0.5, replies)
    assert found["serialise"] == pytest.approx(0.8)
    assert found["wait"] == pytest.approx(5.0 - 3.0 - 0.8)


def test_replies_that_tell_nothing_are_waiting():
    assert overhead(2.0, 0.5, [RecordDict()]) == {"serialise": 0.5, "wait": 1.5}
    assert overhead(2.0, 0.5, []) == {"serialise": 0.5, "wait": 1.5}
    assert overhead(1.0, 0.0, [reply("a", 3.0, 0.0)])["wait"] == 0.0
