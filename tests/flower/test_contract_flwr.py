"""What fedsim relies on in Flower; a new release that changes it fails here, by name."""

import inspect
import tomllib
from pathlib import Path

import flwr
import numpy as np
import pytest
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Context,
    Error,
    Message,
    MessageType,
    MetricRecord,
    RecordDict,
)
from flwr.clientapp import ClientApp
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp import strategy as stock

from fedsim.flower.identity import ensure_identity
from fedsim.flower.stock_strategy import PLATFORM_KEYS

REPOSITORY = Path(__file__).parents[2]


def parameters(function):
    return list(inspect.signature(function).parameters)


def test_the_pinned_series_is_installed():
    assert flwr.__version__.startswith("1.42."), "pin another flwr in pyproject.toml and run these tests"


def test_a_message_is_made_from_content_node_and_type():
    ensure_identity()
    message = Message(RecordDict(), 7, MessageType.TRAIN, ttl=5.0, group_id="3")
    metadata = message.metadata
    assert (metadata.dst_node_id, metadata.message_type, metadata.ttl) == (7, "train", 5.0)
    assert (metadata.group_id, metadata.reply_to_message_id, metadata.src_node_id) == ("3", "", 1)
    assert Message(RecordDict(), 7, "train", ttl=None).metadata.ttl > 3600
    reply = Message(RecordDict(), reply_to=message)
    assert (reply.metadata.dst_node_id, reply.metadata.src_node_id) == (1, 7)
    assert (reply.has_content(), reply.has_error()) == (True, False)
    error = Message(Error(2, "why"), reply_to=message)
    assert (error.has_error(), error.error.code, error.error.reason) == (True, 2, "why")


def test_a_grid_has_the_methods_that_are_called():
    assert parameters(Grid.push_messages) == ["self", "messages"]
    assert parameters(Grid.pull_messages) == ["self", "message_ids"]
    assert Grid.__abstractmethods__ == {
        "create_message",
        "get_node_ids",
        "pull_messages",
        "push_messages",
        "run",
        "send_and_receive",
        "set_run",
    }


def test_flowers_own_grids_are_where_they_were():
    from flwr.superlink.grid import HttpGrid, InMemoryGrid

    assert issubclass(HttpGrid, Grid)
    assert issubclass(InMemoryGrid, Grid)


def test_error_codes_have_their_meaning():
    names = {name: value for name, value in vars(ErrorCode).items() if name.isupper()}
    assert names == {
        "UNKNOWN": 0,
        "LOAD_CLIENT_APP_EXCEPTION": 1,
        "CLIENT_APP_RAISED_EXCEPTION": 2,
        "MESSAGE_UNAVAILABLE": 3,
        "REPLY_MESSAGE_UNAVAILABLE": 4,
        "NODE_UNAVAILABLE": 5,
        "MOD_FAILED_PRECONDITION": 6,
        "INVALID_FAB": 7,
        "CLIENT_APP_CRASHED": 8,
    }


def test_records_hold_what_we_put_into_them():
    content = RecordDict(
        {
            "a": ArrayRecord({"x": Array("bfloat16", (1,), "any", b"\0\0")}),
            "m": MetricRecord({"loss": [0.1, 10.0]}),
            "c": ConfigRecord({"splits": ["val"], "flag": True, "n": -2, "text": "ü"}),
        }
    )
    assert list(content.array_records) == ["a"]
    assert content.metric_records["m"]["loss"] == [0.1, 10.0]
    assert dict(content.config_records["c"]) == {"splits": ["val"], "flag": True, "n": -2, "text": "ü"}
    content.pop("a")
    assert "a" not in content
    assert Array(np.zeros((0, 3))).numpy().shape == (0, 3)


def test_apps_register_functions_by_decorator_and_are_called_with_a_context():
    app, seen = ClientApp(), []

    @app.train()
    def train(message, context):
        seen.append(context.node_config)
        return Message(RecordDict(), reply_to=message)

    ensure_identity()
    context = Context(1, 2, {"partition-id": 3}, RecordDict(), {"experiment": "x"})
    app(Message(RecordDict(), 2, "train"), context)
    assert seen == [{"partition-id": 3}]
    assert ServerApp().main


RULES = (
    "FedAvg FedAvgM FedAdam FedYogi FedAdagrad FedMedian FedTrimmedAvg Krum MultiKrum Bulyan FedProx QFedAvg"
)


@pytest.mark.parametrize("name", RULES.split())
def test_stock_rules_are_configured_and_aggregate_as_the_adapter_calls_them(name):
    rule = getattr(stock, name)
    assert parameters(rule.configure_train) == ["self", "server_round", "arrays", "config", "grid"]
    assert parameters(rule.aggregate_train) == ["self", "server_round", "replies"]
    known = set(parameters(rule.__init__))
    assert {"fraction_train", "min_train_nodes", "min_available_nodes"} <= known & set(PLATFORM_KEYS)


def test_stock_rules_weigh_by_the_key_that_the_adapter_sends():
    assert inspect.signature(stock.FedAvg).parameters["weighted_by_key"].default == "num-examples"


def test_both_apps_are_found_by_flowers_own_check():
    from flwr.common.config import validate_config
    from flwr.supercore.object_ref import validate

    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
    valid, errors, _ = validate_config(project, check_module=False)
    assert valid, errors
    for component in project["tool"]["flwr"]["app"]["components"].values():
        assert validate(component, project_dir=REPOSITORY) == (True, None)


def test_the_run_configuration_has_the_keys_that_the_apps_read():
    config = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    assert {"experiment", "overrides"} <= set(config)


def test_flower_runs_processes_with_the_options_that_the_wrapper_gives():
    from flwr.superlink.cli.flower_superlink import _parse_args_run_superlink
    from flwr.supernode.cli.flower_supernode import _parse_args_run_supernode

    link = ["--insecure", "--host", "127.0.0.1", "--port", "5000", "--simulation"]
    parsed = _parse_args_run_superlink().parse_args([*link, "--disable-runtime-dependency-installation"])
    assert parsed.runtime_dependency_install is False
    node = ["--insecure", "--superlink", "127.0.0.1:5000", "--host", "127.0.0.1", "--port", "5001"]
    settings = ["--node-config", "partition-id=1 num-partitions=2"]
    assert _parse_args_run_supernode().parse_args([*node, *settings]).node_config == settings[1]


def test_node_settings_are_read_as_numbers():
    from flwr.common.config import parse_config_args

    parsed = parse_config_args(["partition-id=1 num-partitions=2"])
    assert parsed == {"partition-id": 1, "num-partitions": 2}


def test_flower_reads_the_federation_that_our_messages_and_the_wrapper_write():
    from flwr.cli.run.run import _parse_federation_config_overrides
    from flwr.cli.typing import SuperLinkConnection

    connection = SuperLinkConnection("x", address="127.0.0.1:1", insecure=True)
    text = "num-supernodes=20 client-resources-num-cpus=1 init-args-num-cpus=2"
    config = _parse_federation_config_overrides([text], connection)
    assert (config.num_supernodes, config.client_resources_num_cpus, config.init_args_num_cpus) == (20, 1, 2)


def test_bundles_hold_python_and_toml_and_at_most_10_mb():
    from flwr.common.constant import FAB_INCLUDE_PATTERNS, FAB_MAX_SIZE
    from flwr.supercore.constant import MAX_DIR_DEPTH

    assert {"**/*.py", "**/*.toml"} <= set(FAB_INCLUDE_PATTERNS) | {"**/*.toml"}
    assert (FAB_MAX_SIZE, MAX_DIR_DEPTH) == (10 * 2**20, 10)
