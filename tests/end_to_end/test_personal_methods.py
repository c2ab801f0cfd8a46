"""Every personal method through `fedsim run`: interrupted, resumed, and its bad keys."""

import pytest

HELP = '''
from dataclasses import dataclass
from pathlib import Path

import torch

from fedsim.data.pool import NodePool
from strategies.fedavg import FedAvg


@dataclass(frozen=True, kw_only=True)
class StopsOnce(FedAvg):
    """Is interrupted in round 3, the first time."""

    flag: str = ""

    def step(self, state, cohort, server):
        if self.flag and cohort.round == 3 and not Path(self.flag).exists():
            Path(self.flag).write_text("stopped")
            raise KeyboardInterrupt
        return super().step(state, cohort, server)


@dataclass(frozen=True, kw_only=True)
class TinyGraph:
    """A random graph of 90 nodes whose labels follow their features."""

    def load(self):
        rng = torch.Generator().manual_seed(0)
        x = torch.randn(90, 6, generator=rng)
        ends = torch.randint(90, (2, 200), generator=rng)
        y = x[:, :3].argmax(dim=1)
        return (NodePool(name="tiny", x=x, edge_index=torch.cat([ends, ends.flip(0)], 1), y=y, classes=3),)
'''

MLP = ("model.hidden=8", "client.optimizer.momentum=0.5")
NODES = (
    "data.kind=help_of_a_test:TinyGraph",
    "federation.partition.kind=iid",
    "client.optimizer={kind='adam',learning_rate=0.05}",
)
METHODS = {
    "local": MLP,
    "finetune": (*MLP, "client.tune_epochs=2"),
    "fedprox": (*MLP, "client.mu=0.1"),
    "fedper": MLP,
    "fedrep": (*MLP, "client.head_epochs=2"),
    "fedbn": ("model={kind='resnet18',norm='batch',width=2}",),
    "ditto": (*MLP, "client.pull=0.5"),
    "apfl": MLP,
    "flatland": (*NODES, "model={kind='lorentz',hidden=4}", "client.diagnostics=true"),
}


@pytest.fixture
def help_module(folder):
    (folder / "help_of_a_test.py").write_text(HELP, encoding="utf-8")
    quick = (folder / "quick.toml").read_text()
    quick = quick.replace('{ kind = "dirichlet", alpha = 0.5 }', '{ kind = "iid" }')
    (folder / "quick.toml").write_text(quick.replace("keep_optimizer = true\n", ""), encoding="utf-8")


@pytest.mark.parametrize("kind", METHODS)
@pytest.mark.usefixtures("help_module")
def test_interrupted_and_resumed_the_numbers_are_those_of_one_run(fedsim, sets, tmp_path, kind):
    words = sets(
        f"client.kind={kind}",
        "strategy.kind=help_of_a_test:StopsOnce",
        f"strategy.flag={tmp_path / 'flag'}",
        *METHODS[kind],
    )
    stopped = fedsim("run", "quick.toml", *words)
    assert stopped.code == 130, stopped.err
    resumed = fedsim("run", "quick.toml", *words, "--resume")
    assert resumed.code == 0, resumed.err
    whole = fedsim("run", "quick.toml", *words, out="whole")
    assert resumed.sha == whole.sha
    assert resumed.result["metrics"] == whole.result["metrics"]
    assert resumed.result["metrics"]["client_test_accuracy"]["model"] == "personal"
    assert ("test_accuracy" in whole.result["metrics"]) == (kind in ("finetune", "fedprox", "ditto", "apfl"))


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        (("client.kind=fedprox",), "client.mu: missing; FedProx needs it (float)."),
        (("client.kind=ditto", "client.pull=-1.0"), "client.pull must be at least 0 and finite, found -1.0."),
        (("client.kind=apfl", "client.alpha=2.0"), "client.alpha must be between 0 and 1, found 2.0."),
        (("client.kind=fedper", "client.private=['tail']"), "client.private: the model has no part 'tail'"),
        (
            ("client.kind=fedbn",),
            'client.kind = "fedbn" keeps BatchNorm layers private, but MlpModel has none',
        ),
        (
            ("client.kind=flatland",),
            'client.kind = "flatland" needs time-like parameters, which MlpModel lacks',
        ),
        (("client.kind=fedrep", "client.head_epoch=2"), "did you mean 'head_epochs'"),
    ],
)
@pytest.mark.usefixtures("help_module")
def test_bad_keys_are_one_line(fedsim, sets, pairs, message):
    done = fedsim("run", "quick.toml", *sets(*pairs))
    assert (done.code, done.err.count("\n")) == (2, 1), done.err
    assert message in done.err
