"""EngineGrid: messages become calls of a ClientApp, replies come back in partition order."""

import pickle
import random
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.common.constant import ErrorCode

from fedsim.engine.protocols import WorkerPlace
from fedsim.flower.client_handler import ClientAppSetup
from fedsim.flower.grid import EngineGrid
from fedsim.flower.wire import Broadcast

APP = Path(__file__).parent / "apps" / "grid_probe"
CLIENTS = 4


class PicklingEngine:
    """Runs tasks one after the other; everything passes through pickle, as between processes."""

    workers = 1

    def __init__(self, setup):
        import torch

        self.handler = pickle.loads(pickle.dumps(setup))(None, WorkerPlace(0, torch.device("cpu")))
        self.calls = []

    def run(self, broadcast, tasks, round):
        self.calls.append((broadcast, tasks))
        random.random()  # backends do
        broadcast, tasks = pickle.loads(pickle.dumps((broadcast, tasks)))
        results = {}
        for task in reversed(tasks):  # results must not depend on the order of tasks
            outcomes = pickle.loads(pickle.dumps(list(self.handler.run(broadcast, task))))
            results.update(zip(task.items, outcomes, strict=True))
        return results

    def close(self):
        pass


@pytest.fixture
def grid():
    return make_grid(seed=3)


def make_grid(seed, clients=CLIENTS, config=None):
    setup = ClientAppSetup(
        reference="probe:app",
        directory=str(APP),
        seed=seed,
        clients=clients,
        run_id=5,
        run_config=config or {"greeting": "hi"},
    )
    return EngineGrid(PicklingEngine(setup), clients=clients, seed=seed)


def arrays(value):
    return ArrayRecord({"w": Array(np.full(3, value))})


def train_messages(grid, content=None):
    content = content or RecordDict({"arrays": arrays(1.0)})
    return [Message(content, node, "train") for node in grid.get_node_ids()]


def partitions_of(replies):
    return [reply.content["who"]["partition"] for reply in replies]


def test_node_ids_depend_on_seed_and_partition_only():
    assert make_grid(3).get_node_ids() == make_grid(3).get_node_ids()
    assert make_grid(3, clients=6).get_node_ids()[:4] == make_grid(3).get_node_ids()
    assert not set(make_grid(3).get_node_ids()) & set(make_grid(4).get_node_ids())
    assert all(1 < node < 2**63 for node in make_grid(3).get_node_ids())
    assert [info.node_id for info in make_grid(3).get_nodes()] == make_grid(3).get_node_ids()


def test_replies_are_in_partition_order_whatever_the_order_of_messages(grid):
    replies = grid.send_and_receive(reversed(train_messages(grid)))
    assert partitions_of(replies) == [0, 1, 2, 3]


def test_metadata_is_what_flower_sets(grid):
    node = grid.get_node_ids()[2]
    message = Message(RecordDict(), node, "query.named", ttl=60.0, group_id="7")
    [reply] = grid.send_and_receive([message])
    assert message.metadata.message_id
    assert reply.metadata.reply_to_message_id == message.metadata.message_id
    assert reply.metadata.message_id not in ("", message.metadata.message_id)
    assert (reply.metadata.src_node_id, reply.metadata.dst_node_id) == (node, 1)
    assert (reply.metadata.group_id, reply.metadata.message_type) == ("7", "query.named")
    assert 0 < reply.metadata.ttl <= 60.0
    assert reply.content["who"]["run"] == 5
    assert reply.content["who"]["greeting"] == "hi"


def test_message_ids_are_deterministic_and_unique():
    def ids(grid):
        return grid.push_messages(train_messages(grid))

    assert ids(make_grid(3)) == ids(make_grid(3))
    assert len(set(ids(make_grid(3)))) == CLIENTS


def test_a_shared_content_is_broadcast_once(grid):
    content = RecordDict({"arrays": arrays(2.0)})
    grid.send_and_receive(train_messages(grid, content))
    [(broadcast, tasks)] = grid._engine.calls
    assert len(broadcast.contents) == len(broadcast.buffers) == 1
    assert all(task.payloads[0].content == 0 for task in tasks)


def test_one_model_beside_different_configurations_is_broadcast_once(grid):
    model = arrays(2.0)
    messages = [
        Message(RecordDict({"arrays": model, "config": ConfigRecord({"rate": float(i)})}), node, "train")
        for i, node in enumerate(grid.get_node_ids())
    ]
    replies = grid.send_and_receive(messages)
    [(broadcast, _)] = grid._engine.calls
    assert (len(broadcast.contents), len(broadcast.buffers)) == (0, 1)
    assert [reply.content["who"]["rate"] for reply in replies] == [0.0, 1.0, 2.0, 3.0]


def test_different_contents_travel_with_their_messages_only(grid):
    messages = [
        Message(RecordDict({"arrays": arrays(float(i))}), node, "train")
        for i, node in enumerate(grid.get_node_ids())
    ]
    replies = grid.send_and_receive(messages)
    assert grid._engine.calls[0][0] == Broadcast()
    assert [reply.content["arrays"]["w"].numpy()[0] for reply in replies] == [0.0, 1.0, 2.0, 3.0]


def test_two_messages_to_one_node_are_answered_in_order_and_share_state(grid):
    node, other = grid.get_node_ids()[1], grid.get_node_ids()[0]
    messages = [Message(RecordDict(), n, "query.named") for n in (node, other, node, node)]
    replies = grid.send_and_receive(messages)
    assert [(r.content["who"]["partition"], r.content["who"]["count"]) for r in replies] == [
        (0, 1),
        (1, 1),
        (1, 2),
        (1, 3),
    ]
    assert [r.metadata.reply_to_message_id for r in replies] == [
        messages[i].metadata.message_id for i in (1, 0, 2, 3)
    ]


def test_the_same_message_object_may_be_sent_twice(grid):
    message = Message(RecordDict(), grid.get_node_ids()[0], "query.named")
    ids = grid.push_messages([message, message])
    replies = grid.pull_messages(ids)
    assert [reply.metadata.reply_to_message_id for reply in replies] == ids
    assert [reply.content["who"]["count"] for reply in replies] == [1, 2]


def test_two_kinds_in_one_call(grid):
    first, second = grid.get_node_ids()[:2]
    messages = [Message(RecordDict(), first, "query.named"), Message(RecordDict(), second, "evaluate")]
    assert partitions_of(grid.send_and_receive(messages)) == [0, 1]


def test_pull_gives_the_asked_ids_in_order_and_once(grid):
    ids = grid.push_messages(train_messages(grid))
    wanted = [ids[2], ids[0]]
    assert [r.metadata.reply_to_message_id for r in grid.pull_messages(wanted)] == wanted
    again = grid.pull_messages([ids[2], "unknown", ids[1]])
    assert [r.has_error() for r in again] == [True, True, False]
    assert again[0].error.code == ErrorCode.MESSAGE_UNAVAILABLE
    assert grid.pull_messages([]) == []


def test_a_message_to_nobody_is_missing_and_noted(grid, caplog):
    messages = [Message(RecordDict(), 99, "query.named"), *train_messages(grid)]
    assert len(grid.send_and_receive(messages)) == CLIENTS
    assert "no node 99" in grid.ledger.notes[0]
    assert "no node 99" in caplog.text
    assert grid.push_messages([Message(RecordDict(), 99, "query.named")]) == []


def test_replies_and_messages_without_time_are_refused(grid):
    [reply] = grid.send_and_receive([Message(RecordDict(), grid.get_node_ids()[0], "query.named")])
    with pytest.raises(ValueError, match="not replies"):
        grid.push_messages([reply])
    with pytest.raises(ValueError, match="time to live above 0"):
        grid.push_messages([Message(RecordDict(), grid.get_node_ids()[0], "query", ttl=-1.0)])


def test_an_exception_becomes_an_error_reply_and_a_ledger_entry(grid):
    content = RecordDict({"orders": ConfigRecord({"raise": [1, 3]})})
    replies = grid.send_and_receive([Message(content, n, "query.named") for n in grid.get_node_ids()])
    assert [reply.has_error() for reply in replies] == [False, True, False, True]
    assert replies[1].error.code == ErrorCode.CLIENT_APP_RAISED_EXCEPTION
    assert replies[1].error.reason == "Client 1: ValueError: told to raise"
    assert [(f.partition, f.kind) for f in grid.ledger.failures] == [(1, "exception"), (3, "exception")]
    assert "in named" in grid.ledger.failures[0].traceback


def test_sys_exit_in_a_client_is_its_own_failure(grid):
    content = RecordDict({"orders": ConfigRecord({"exit": [2]})})
    replies = grid.send_and_receive([Message(content, n, "query.named") for n in grid.get_node_ids()])
    assert [reply.has_error() for reply in replies] == [False, False, True, False]
    assert "SystemExit" in replies[2].error.reason


def test_an_error_that_the_app_replies_is_passed_on_and_recorded(grid):
    content = RecordDict({"orders": ConfigRecord({"error": [0]})})
    replies = grid.send_and_receive([Message(content, n, "query.named") for n in grid.get_node_ids()])
    assert (replies[0].error.code, replies[0].error.reason) == (77, "not today")
    assert grid.ledger.failures[0].message == "Client 0: not today"


@pytest.mark.parametrize(
    ("order", "words"),
    [
        ("none", "return a flwr Message"),
        ("unrelated", "reply_to=message"),
        ("config", "run_config"),
    ],
)
def test_what_is_no_reply_is_an_error(grid, order, words):
    content = RecordDict({"orders": ConfigRecord({order: [0]})})
    [reply] = grid.send_and_receive([Message(content, grid.get_node_ids()[0], "query.named")])
    assert words in reply.error.reason


def test_state_is_kept_from_before_a_failed_call(grid):
    node = grid.get_node_ids()[0]
    bad = RecordDict({"orders": ConfigRecord({"raise": [0]})})
    kinds = [RecordDict(), bad, RecordDict()]
    replies = [grid.send_and_receive([Message(content, node, "query.named")])[0] for content in kinds]
    assert [replies[0].content["who"]["count"], replies[2].content["who"]["count"]] == [1, 2]


def test_clients_cannot_change_what_others_or_the_server_hold(grid):
    content = RecordDict({"arrays": arrays(1.0), "orders": ConfigRecord({"vandal": [0, 1, 2, 3]})})
    replies = grid.send_and_receive(train_messages(grid, content))
    assert [reply.content["who"]["keys"] for reply in replies] == [2, 2, 2, 2]
    assert content["orders"]["vandal"] == [0, 1, 2, 3]
    assert list(content) == ["arrays", "orders"]


def test_draws_depend_on_seed_partition_and_message_number_only():
    def draws(grid, order):
        nodes = grid.get_node_ids()
        seen = {}
        for partition in order:
            [reply] = grid.send_and_receive([Message(RecordDict(), nodes[partition], "query.named")])
            seen.setdefault(partition, []).append(reply.content["who"]["draw"])
        return seen

    straight, mixed = draws(make_grid(3), [0, 0, 1, 1]), draws(make_grid(3), [1, 0, 1, 0])
    assert straight == mixed
    assert len({value for values in straight.values() for value in values}) == 4
    assert draws(make_grid(4), [0])[0][0] != straight[0][0]


@pytest.mark.parametrize(
    ("order", "kind", "refused"),
    [
        ("nan", "train", True),
        ("infinite", "train.named", True),
        ("empty", "train", True),
        ("empty", "evaluate", True),
        ("nan", "query.named", False),
    ],
)
def test_what_would_poison_a_mean_is_refused(grid, order, kind, refused):
    content = RecordDict({"arrays": arrays(1.0), "orders": ConfigRecord({order: [1]})})
    replies = grid.send_and_receive([Message(content, n, kind) for n in grid.get_node_ids()])
    assert [reply.has_error() for reply in replies] == [False, refused, False, False]
    assert [(f.kind, f.partition) for f in grid.ledger.failures] == [("refused", 1)] * refused


def test_timeout_leaves_late_replies_out(grid):
    content = RecordDict({"orders": ConfigRecord({"sleep": [1]})})
    messages = [Message(content, n, "query.named") for n in grid.get_node_ids()]
    replies = grid.send_and_receive(messages, timeout=0.2)
    answered = partitions_of(replies)
    assert 1 not in answered
    assert {f.kind for f in grid.ledger.failures} == {"deadline"}
    assert {f.partition for f in grid.ledger.failures} == set(range(CLIENTS)) - set(answered)


def test_time_to_live_gives_an_error_reply(grid):
    content = RecordDict({"orders": ConfigRecord({"sleep": [0]})})
    [reply] = grid.send_and_receive([Message(content, grid.get_node_ids()[0], "query.named", ttl=0.1)])
    assert reply.error.code == ErrorCode.REPLY_MESSAGE_UNAVAILABLE
    assert "time was up" in reply.error.reason


def test_drifted_integers_are_restored_with_a_warning(grid, caplog):
    def sent(value):
        record = ArrayRecord({"w": Array(np.ones(2)), "steps": Array(np.asarray(value))})
        content = RecordDict({"arrays": record})
        replies = grid.send_and_receive([Message(content, n, "train") for n in grid.get_node_ids()])
        assert content["arrays"]["steps"].dtype == str(np.asarray(value).dtype)
        return {
            (r.content["arrays"]["steps"].dtype, int(r.content["arrays"]["steps"].numpy())) for r in replies
        }

    grid.rule = "FedAvg"
    assert sent(np.int64(3)) == {("int64", 3)}
    assert sent(np.float64(3.0000000000000004)) == {("int64", 3)}
    assert sent(np.float64(3.9999999999999996)) == {("int64", 4)}
    assert [line for line in grid.ledger.notes if "FedAvg" in line and "arrays['steps'] (int64)" in line]
    assert caplog.text.count("FedAvg turned integer arrays into floats") == 1


def test_floats_that_were_never_integers_stay(grid):
    for value in (np.float64(1.5), np.float64(2.5)):
        content = RecordDict({"arrays": ArrayRecord({"w": Array(np.asarray(value))})})
        [reply] = grid.send_and_receive([Message(content, grid.get_node_ids()[0], "train")])
        assert reply.content["arrays"]["w"].numpy() == value
    assert not grid.ledger.notes


def test_metrics_and_configs_keep_their_types(grid):
    content = RecordDict(
        {
            "m": MetricRecord({"i": 1, "f": 1.0, "l": [1, 2], "e": []}),
            "c": ConfigRecord({"b": True, "s": "x", "y": b"\x00", "l": ["a"], "n": 3}),
            "none": ArrayRecord(),
        }
    )
    [reply] = grid.send_and_receive([Message(content, grid.get_node_ids()[0], "query.echo")])
    assert reply.content == content
    assert type(reply.content["m"]["f"]) is float
    assert type(reply.content["c"]["b"]) is bool


def test_endless_waiting_for_nodes_is_told(grid, caplog):
    for _ in range(25):
        grid.get_node_ids()
    assert caplog.text.count("waiting for more will not end") == 1


def test_the_ledger_counts_rounds_that_messages_name(grid):
    config = RecordDict({"config": ConfigRecord({"server-round": 9})})
    grid.send_and_receive([Message(config, n, "query.named") for n in grid.get_node_ids()])
    grid.send_and_receive([Message(RecordDict(), grid.get_node_ids()[0], "query.named", group_id="4")])
    assert grid.ledger.sent == {(9, "query.named"): CLIENTS, (4, "query.named"): 1}


def test_an_engine_that_draws_moves_no_draw_of_the_server(grid):
    random.seed(1)
    expected = [random.random() for _ in range(2)]
    random.seed(1)
    found = [random.random()]
    grid.send_and_receive(train_messages(grid))
    assert [*found, random.random()] == expected
