"""Stock Flower strategies by dotted path, in whole runs: averaged, checkpointed, resumed."""

import pytest
import torch

from fedsim.config import load
from fedsim.errors import ConfigError
from fedsim.plugins import build
from fedsim.run.runner import Silent, run
from fedsim.run.transports import LocalTransport

FILE = """
rounds = 4
engine.workers = 1
federation = { clients = 4, clients_per_round = 3 }
model = { kind = "logistic" }
evaluate = { clients = "none" }
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "stock.toml"
    path.write_text(FILE)
    return path


def outcome(file, out, *overrides, **options):
    (one,) = run(load(file, overrides), out, federation_of=LocalTransport(file, overrides), **options)
    assert one.status == "completed", one.result["reason"]
    return one


class Interrupt(Silent):
    def round_finished(self, record):
        if record["round"] == 2:
            raise KeyboardInterrupt


def test_stock_fedavg_trains_our_model(file, tmp_path):
    ours = outcome(file, tmp_path / "ours")
    theirs = outcome(file, tmp_path / "theirs", "strategy=flwr.serverapp.strategy:FedAvg")
    for name, tensor in ours.tensors.items():
        torch.testing.assert_close(theirs.tensors[name], tensor, rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", ["FedAdam", "FedAvgM"])
def test_a_stock_rule_with_memory_resumes_to_the_same_bits(file, tmp_path, name):
    options = [f"strategy.kind=flwr.serverapp.strategy:{name}"]
    options += ["strategy.server_momentum=0.9"] if name == "FedAvgM" else ["strategy.eta=0.02"]
    whole = outcome(file, tmp_path / "whole", *options)
    with pytest.raises(KeyboardInterrupt):
        outcome(file, tmp_path / "cut", *options, observer=Interrupt())
    resumed = outcome(file, tmp_path / "cut", *options, resume=True)
    assert resumed.result["model_sha256"] == whole.result["model_sha256"]


def test_errors_name_the_table():
    table = {"kind": "flwr.serverapp.strategy:FedAvgM", "server_momentun": 0.9}
    with pytest.raises(ConfigError, match=r"unknown key 'strategy.server_momentun' for kind FedAvgM"):
        build("strategies", table, "strategy")
    with pytest.raises(ConfigError, match=r"strategy.kind: 'flwr.serverapp.strategy' has no 'FedAwg'"):
        build("strategies", {"kind": "flwr.serverapp.strategy:FedAwg"}, "strategy")
