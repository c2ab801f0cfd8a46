import json
from functools import cache
from types import SimpleNamespace

import pytest
import torch

from fedsim.config import parse
from fedsim.contracts import Cohort, DataSpec
from fedsim.data.examples import Rows
from fedsim.params import Layout
from fedsim.plugins import options_of, resolve
from fedsim.run.adversary import Adversary
from fedsim.run.assembly import assemble
from fedsim.run.directory import RunDirectory
from fedsim.run.outcome import Silent
from fedsim.run.runner import run_seed
from fedsim.run.transports import engine_federation
from fedsim.threat import Threat

SPEC = DataSpec("rows", (3, 8, 8), 10)


@pytest.fixture
def colours():
    """Some uint8 images of three channels, standardised by odd numbers."""

    def make(count=24, seed=0, dtype=torch.float64):
        generator = torch.Generator().manual_seed(seed)
        x = torch.randint(256, (count, 3, 8, 8), generator=generator, dtype=torch.uint8)
        y = torch.randint(10, (count,), generator=generator)
        mean = torch.tensor([120.0, 99.5, 113.0]).view(3, 1, 1)
        std = torch.tensor([63.0, 62.1, 66.7]).view(3, 1, 1)
        return Rows(x, y, mean, std, dtype, white=255.0)

    return make


@pytest.fixture
def make_threat(colours):
    def make(members=(1, 4), spec=SPEC, layout=None, **changes):
        return Threat(
            members=members,
            window=(1, 3),
            clients=8,
            clients_per_round=6,
            layout=layout or Layout.of({"w": torch.zeros(5)}),
            spec=spec,
            **{"pixels": colours(1).pixels, **changes},
        )

    return make


@pytest.fixture
def crafted():
    """Rows that an attack makes of honest updates [n, d]; the malicious ones are those of `members`."""

    def make(attack, updates, members=(1, 4), rule=None, state=None, round_=1):
        n, d = updates.shape
        layout = Layout.of({"w": torch.zeros(d, dtype=updates.dtype)})
        threat = Threat(
            members=members, window=(1, 3), clients=n, clients_per_round=n, layout=layout, spec=SPEC
        )
        data = SimpleNamespace(clients=[None] * n)
        parts = SimpleNamespace(seed=0, data=data, program_of=lambda *_: None)
        cohort = Cohort(
            round=round_,
            partitions=tuple(range(n)),
            updates=updates,
            examples=torch.ones(n, dtype=torch.int64),
            layout=layout,
        )
        model = torch.zeros(d, dtype=updates.dtype)
        adversary = Adversary(attack, threat, False, parts)
        return adversary.rewrite(
            state or {}, cohort, model, {}, rule or (lambda rows: rows.mean(dim=0))
        ).updates

    return make


QUICK = {
    "search_steps": 3,
    "steps": 3,
    "search_batch": 8,
    "unlearn_every": 2,
    "unlearn_steps": 2,
    "drift_rounds": 3,
    "patch": {"height": 2, "width": 2},
}
"""For attacks that have such options: less work, and a trigger that fits digits."""


class StopsAfter(Silent):
    """Interrupts a run after a round."""

    def __init__(self, round_):
        self.round = round_

    def round_finished(self, record):
        if record["round"] == self.round:
            raise KeyboardInterrupt


def table(kind, **options):
    """An [attack] table with its quick options; 2 of 6 clients in rounds 3 and 4."""
    known = {option.name for option in options_of(resolve("attacks", kind, "attack"))}
    quick = {name: value for name, value in QUICK.items() if name in known}
    who = {"malicious": [1, 4], "participation": "forced", "window": [3, 4], "clean_run": False}
    return {"kind": kind, **who, **quick, **options}


def small(attack, engine=None, **changes):
    """Digits among 6 clients, 4 of them per round, for 5 rounds."""
    return parse(
        {
            "rounds": 5,
            "federation": {"clients": 6, "clients_per_round": 4, "partition": "iid"},
            "model": {"kind": "mlp", "hidden": 8, "dropout": 0.2},
            "client": {
                "kind": "supervised",
                "optimizer": {"kind": "sgd", "learning_rate": 0.1, "momentum": 0.9},
            },
            "attack": attack,
            "engine": {"workers": 1, **(engine or {})},
            "evaluate": {"clients": "none"},
            **changes,
        }
    )


def play(folder, kind, stop=None, resume=False, engine=None, **options):
    """A small run: its hash, metrics, rounds and final tensors."""
    outcome = run_seed(
        small(table(kind, **options), engine),
        0,
        RunDirectory(folder),
        federation_of=engine_federation,
        observer=Silent() if stop is None else StopsAfter(stop),
        resume=resume,
    )
    assert outcome.status == "completed", outcome.result["reason"]
    return SimpleNamespace(
        sha=outcome.result["model_sha256"],
        metrics=outcome.result["metrics"],
        rounds=[json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()],
        tensors=outcome.tensors,
    )


@pytest.fixture
def played(tmp_path):
    """`play` in a folder of that name."""
    return lambda kind, name="run", **options: play(tmp_path / name, kind, **options)


@pytest.fixture(scope="session")
def played_whole(tmp_path_factory):
    """`play` with nothing changed, once per attack."""
    return cache(lambda kind: play(tmp_path_factory.mktemp(kind), kind))


@pytest.fixture
def adversary_of():
    """A registered attack inside the parts of a small run, before round 1."""

    def make(kind, changes=None, **options):
        parts = assemble(small(table(kind, **options), **(changes or {})), 0)
        return Adversary.of(parts)

    return make
