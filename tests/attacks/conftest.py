from types import SimpleNamespace

import pytest
import torch

from fedsim.contracts import Cohort, DataSpec
from fedsim.data.examples import Rows
from fedsim.params import Layout
from fedsim.run.adversary import Adversary
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
