"""GridFederation over a grid that calls the ClientApp directly, with a handler that is easy to follow."""

import time
import uuid
from dataclasses import replace

import pytest
import torch
from flwr.app import ConfigRecord, Context, Error, Message, RecordDict
from flwr.serverapp import Grid

from fedsim.contracts import Failure, LocalEvaluation, LocalUpdate
from fedsim.errors import ConfigError, RoundError
from fedsim.federation import EvaluateOrder, TrainOrder
from fedsim.flower.client_side import client_app
from fedsim.flower.grid_federation import GridFederation
from fedsim.metrics import Sum

CLIENTS = 4
SECRET = 1234.5678  # what a private tensor holds; the wire must never show it


class Counting:
    """Adds the partition to the model; its private tensor counts the rounds that were accepted."""

    def __init__(self, broken=()):
        self.broken = broken

    def run(self, order, task):
        (partition,), (private,) = task.items, task.payloads
        if partition in self.broken:
            return [Failure(order.round, partition, 0, "exception", "ValueError: bad batch", "Traceback ...")]
        rounds = (private or {}).get("rounds", torch.tensor([SECRET, 0.0]))
        if isinstance(order, EvaluateOrder):
            assert order.splits == ("val", "test")
            return [LocalEvaluation(partition, {"test_rounds": Sum(float(rounds[1]), 1.0)})]
        after = {} if partition == 3 else {"rounds": rounds + torch.tensor([0.0, 1.0])}
        return [
            LocalUpdate(
                partition=partition,
                update=torch.full_like(order.vector, float(partition)),
                integers={"n": order.integers["n"] + 1},
                examples=10 + partition,
                steps=3,
                uplink={"u": order.downlink["d"] * 2},
                metrics={"train_loss": Sum(0.1 + partition, 10.0)},
                private=after,
            )
        ]


class DirectGrid(Grid):
    """Delivers at once; node ids run against the partitions, and replies come back in reverse."""

    def __init__(self, app, clients=CLIENTS, node_config=None):
        self.app, self.wire, self.silent, self.errors = app, [], set(), {}
        self.contexts = {}
        for partition in range(clients):
            config = {"partition-id": partition, "num-partitions": clients}
            self.add(1000 - partition, config if node_config is None else node_config(partition))
        self.replies = {}

    def add(self, node, config):
        self.contexts[node] = Context(1, node, config, RecordDict(), {})

    def get_node_ids(self):
        return list(self.contexts)

    def push_messages(self, messages):
        ids = []
        for message in messages:
            identifier = str(uuid.uuid4())
            message.metadata.__dict__["_message_id"] = identifier
            node = message.metadata.dst_node_id
            self.wire.append(message)
            ids.append(identifier)
            if node in self.silent:
                continue
            if node in self.errors and message.metadata.message_type != "query":
                reply = Message(Error(self.errors[node], "lost\nit"), reply_to=message)
            else:
                reply = self.app(message, self.contexts[node])
            self.wire.append(reply)
            self.replies[identifier] = reply
        return ids

    def pull_messages(self, message_ids):
        return [self.replies.pop(key) for key in reversed(list(message_ids)) if key in self.replies]

    def send_and_receive(self, messages, *, timeout=None):
        raise NotImplementedError

    def create_message(self, *args):
        raise NotImplementedError

    def set_run(self, run):
        raise NotImplementedError

    run = None


def order(round=1):
    return TrainOrder(round, torch.zeros(3), {"n": torch.tensor(5)}, {"d": torch.ones(2)})


def measured(federation, round=1):
    whole = order(round)
    results = federation.evaluate(
        EvaluateOrder(round, whole.vector, whole.integers, whole.downlink), range(CLIENTS)
    )
    return [result.metrics["test_rounds"].total for result in results]


def federated(handler=None, **options):
    grid = DirectGrid(client_app(lambda context, seed: handler or Counting()))
    return grid, GridFederation(grid, CLIENTS, seed=7, patience=1.0, **options)


def test_results_come_in_the_order_asked_and_carry_everything_but_private_tensors():
    _, federation = federated()
    results = federation.train(order(), [2, 0])
    assert [result.partition for result in results] == [2, 0]
    first = results[0]
    assert first.update.tolist() == [2.0] * 3
    assert first.integers["n"].item() == 6
    assert first.integers["n"].dtype == torch.int64
    assert (first.examples, first.steps) == (12, 3)
    assert first.uplink["u"].tolist() == [2.0, 2.0]
    assert first.metrics == {"train_loss": Sum(2.1, 10.0)}
    assert first.private == {}


def test_only_committed_private_state_counts():
    _, federation = federated()
    federation.train(order(1), range(CLIENTS))
    assert measured(federation) == [0.0] * 4  # nothing is committed yet
    federation.commit([0, 2, 3])  # partition 3 keeps nothing
    assert measured(federation) == [1.0, 0.0, 1.0, 0.0]


def test_a_refused_client_goes_on_from_its_last_accepted_round():
    _, federation = federated()
    for number, accepted in ((1, [0, 1]), (2, [0]), (3, [0, 1])):
        federation.train(order(number), [0, 1])
        federation.commit(accepted)
    grid_results = federation.evaluate(EvaluateOrder(3, *_parts()), [0, 1])
    assert [result.metrics["test_rounds"].total for result in grid_results] == [3.0, 2.0]


def _parts():
    whole = order()
    return whole.vector, whole.integers, whole.downlink


def test_a_client_that_was_not_asked_keeps_its_state():
    _, federation = federated()
    federation.train(order(1), [0, 1])
    federation.commit([0, 1])
    federation.train(order(2), [0])
    federation.commit([0])
    results = federation.evaluate(EvaluateOrder(2, *_parts()), [0, 1])
    assert [result.metrics["test_rounds"].total for result in results] == [2.0, 1.0]


def test_commits_of_clients_that_returned_nothing_are_ignored():
    _, federation = federated(Counting(broken=(1,)))
    results = federation.train(order(1), [0, 1])
    federation.commit([0, 1])
    assert results[1] == Failure(1, 1, None, "exception", "ValueError: bad batch", "Traceback ...")
    assert federation.train(order(2), [0])[0].partition == 0


def test_private_tensors_never_enter_a_message():
    grid, federation = federated()
    for number in (1, 2):
        federation.train(order(number), range(CLIENTS))
        federation.commit(range(CLIENTS))
        measured(federation, number)
    secret = torch.tensor([SECRET]).numpy().tobytes()
    held = [c.state for c in grid.contexts.values()]
    assert any(secret in a.data for s in held for r in s.array_records.values() for a in r.values())
    for message in grid.wire:
        for record in message.content.array_records.values():
            assert "rounds" not in record
            assert all(secret not in array.data for array in record.values())
        assert str(SECRET) not in repr(message.content.config_records)
        assert "1234." not in repr(message.content.metric_records)


def test_the_messages_of_a_round_share_their_tensors():
    grid, federation = federated()
    grid.wire.clear()
    federation.train(order(), range(CLIENTS))
    sent = [message for message in grid.wire if message.metadata.reply_to_message_id == ""]
    assert len({id(message.content["vector"]) for message in sent}) == 1


def test_a_restarted_node_says_that_it_lost_its_tensors():
    grid, federation = federated()
    federation.train(order(1), range(CLIENTS))
    federation.commit(range(CLIENTS))
    context = grid.contexts.pop(1000)
    grid.add(5, context.node_config)  # the same partition on a new node
    lost, kept = federation.train(order(2), [0, 1])
    assert isinstance(lost, Failure)
    assert "lost the private tensors that its client kept after round 1" in lost.message
    assert isinstance(kept, LocalUpdate)


def test_a_client_without_private_tensors_may_rejoin():
    grid, federation = federated()
    federation.train(order(1), range(CLIENTS))
    federation.commit(range(CLIENTS))
    context = grid.contexts.pop(997)  # partition 3 keeps nothing
    grid.add(5, context.node_config)
    assert isinstance(federation.train(order(2), [3])[0], LocalUpdate)


def test_a_node_that_came_back_leaves_a_trace():
    grid, federation = federated()
    context = grid.contexts.pop(997)
    grid.add(5, context.node_config)
    federation.train(order(2), [3])
    (one,) = federation.take_incidents()
    assert (one.round, one.items, one.remedy) == (2, (3,), "replaced")
    assert federation.take_incidents() == []


def test_time_is_split_by_what_the_clients_tell():
    class Slow(Counting):
        def run(self, order, task):
            time.sleep(0.05)
            return super().run(order, task)

    _, federation = federated(Slow())
    federation.take_overhead()
    begun = time.perf_counter()
    federation.train(order(), range(CLIENTS))  # one process: the answers follow one another
    total = time.perf_counter() - begun
    found = federation.take_overhead()
    assert found["serialise"] > 0
    assert found["wait"] >= 0
    assert sum(found.values()) < total - 0.05 * CLIENTS
    assert federation.take_overhead() == {"serialise": 0.0, "wait": 0.0}


def test_a_node_that_left_is_a_death():
    grid, federation = federated()
    del grid.contexts[1000]
    results = federation.train(order(1), [0, 1])
    assert (results[0].kind, results[0].partition) == ("died", 0)
    assert isinstance(results[1], LocalUpdate)


@pytest.mark.parametrize(("code", "kind"), [(0, "died"), (8, "died"), (2, "exception"), (4, "deadline")])
def test_error_replies_become_ledger_entries(code, kind):
    grid, federation = federated()
    grid.errors[999] = code
    failure = federation.train(order(4), [0, 1])[1]
    assert failure == Failure(4, 1, None, kind, "lost it")


def test_silence_past_the_deadline_is_an_entry():
    grid, federation = federated(deadline=0.2)
    grid.silent.add(998)
    results = federation.train(order(), [1, 2])
    assert isinstance(results[0], LocalUpdate)
    assert (results[1].kind, results[1].partition) == ("deadline", 2)


def test_an_exception_in_the_clients_code_brings_its_traceback():
    def explode(context, seed):
        raise OSError("disk\nfull")

    grid = DirectGrid(client_app(explode))
    failure = GridFederation(grid, CLIENTS, seed=7).train(order(), [1])[0]
    assert failure.message == "OSError: disk full"
    assert "in explode" in failure.traceback


def test_a_reply_that_lacks_its_records_is_refused():
    _, federation = federated()
    app = federation._grid.app
    federation._grid.app = lambda message, context: Message(RecordDict(), reply_to=message)
    failure = federation.train(order(), [0])[0]
    assert (failure.kind, failure.partition) == ("refused", 0)
    federation._grid.app = app


def test_too_large_messages_are_not_dropped_in_silence():
    _, federation = federated()
    federation._grid.push_messages = lambda messages: []
    with pytest.raises(RoundError, match="took 0 of 2 messages: they are too large"):
        federation.train(order(), [0, 1])


@pytest.mark.parametrize("nodes", [2, 6])
def test_a_wrong_number_of_supernodes_names_the_command(nodes):
    grid = DirectGrid(client_app(lambda context, seed: Counting()), clients=nodes)
    with pytest.raises(ConfigError) as caught:
        GridFederation(grid, CLIENTS, seed=7, patience=30.0)  # refused at once, not after the patience
    assert f"has 4 clients, but this federation has {nodes} SuperNodes" in str(caught.value)
    assert '--federation-config "num-supernodes=4"' in str(caught.value)
    assert "\n" not in str(caught.value)


def test_missing_supernodes_of_a_deployment_are_waited_for_and_then_named():
    grid = DirectGrid(
        client_app(lambda context, seed: Counting()),
        clients=3,
        node_config=lambda partition: {"partition-id": partition, "num-partitions": 4},
    )
    with pytest.raises(ConfigError, match="Only 3 of 4 clients joined within 1 s"):
        GridFederation(grid, CLIENTS, seed=7, patience=1.0)


def test_a_node_without_partition_says_how_to_set_it():
    grid = DirectGrid(client_app(lambda context, seed: Counting()), node_config=lambda partition: {})
    with pytest.raises(
        ConfigError, match=r'no partition-id in its node config: .*--node-config "partition-id=0'
    ):
        GridFederation(grid, CLIENTS, seed=7)


def test_two_nodes_with_one_partition_are_named():
    grid = DirectGrid(
        client_app(lambda context, seed: Counting()),
        node_config=lambda partition: {"partition-id": partition % 3, "num-partitions": 4},
    )
    with pytest.raises(ConfigError, match="Two SuperNodes hold partition 0"):
        GridFederation(grid, CLIENTS, seed=7)


def test_another_apps_nodes_are_named():
    grid = DirectGrid(lambda message, context: Message(RecordDict(), reply_to=message))
    with pytest.raises(ConfigError, match="another ClientApp than fedsim's"):
        GridFederation(grid, CLIENTS, seed=7)


def test_two_seeds_on_the_same_nodes_do_not_mix():
    grid = DirectGrid(client_app(lambda context, seed: Counting()))
    first = GridFederation(grid, CLIENTS, seed=7)
    first.train(order(1), range(CLIENTS))
    first.commit(range(CLIENTS))
    second = GridFederation(grid, CLIENTS, seed=8)
    assert measured(second) == [0.0] * 4
    second.train(order(1), range(CLIENTS))
    second.commit(range(CLIENTS))
    assert measured(second)[0] == 1.0


def test_an_order_for_another_seed_cannot_use_this_seeds_tensors():
    grid = DirectGrid(client_app(lambda context, seed: Counting()))
    federation = GridFederation(grid, CLIENTS, seed=7)
    federation.train(order(1), [0])
    federation.commit([0])
    federation._seed = 8
    assert "lost the private tensors" in federation.train(order(2), [0])[0].message


def test_records_reject_a_malformed_order():
    _, federation = federated()
    grid = federation._grid
    original = grid.app

    def tamper(message, context):
        if message.metadata.message_type == "train":
            config = ConfigRecord(dict(message.content["order"]) | {"round": "one"})
            message.content["order"] = config
        return original(message, context)

    grid.app = tamper
    failure = federation.train(order(), [0])[0]
    assert "order.round should be a number, found 'one'" in failure.message
    assert replace(failure, traceback="").kind == "exception"


def test_a_resumed_run_goes_on_only_for_clients_that_keep_nothing():
    _, federation = federated()
    lost, fine = federation.train(order(3), [0, 3])
    assert "keeps private tensors, and the run was resumed without them" in lost.message
    assert isinstance(fine, LocalUpdate)
    federation.commit([3])
    assert isinstance(federation.train(order(4), [3])[0], LocalUpdate)


def test_close_releases_once():
    closed = []
    _, federation = federated(release=lambda: closed.append(1))
    federation.close()
    federation.close()
    assert closed == [1]


def test_a_stranger_does_not_end_a_running_experiment():
    grid, federation = federated()
    del grid.contexts[1000]
    grid.add(5, {})
    lost, fine = federation.train(order(1), [0, 1])
    assert lost.kind == "died"
    assert "no partition-id in its node config" in lost.message
    assert isinstance(fine, LocalUpdate)
