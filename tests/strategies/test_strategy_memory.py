"""200 clients x 1.6 million parameters: each rule in a process of its own, whose peak is read at its end."""

import os
import subprocess
import sys

import pytest

from fedsim import plugins

LIMIT = 3e9  # bytes, of which the rows in float32 take 1.28e9
SECONDS = 400

PROGRAM = """
import resource
import sys

import torch

torch.set_num_threads(1)

from fedsim import plugins
from fedsim.contracts import Cohort, DataSpec, Server
from fedsim.params import Layout

N, D, CLASSES, WIDTH = 200, 1_600_000, 10, 512
group, options = sys.argv[1], eval(sys.argv[2])
head = CLASSES * (WIDTH + 1)
layout = Layout.of(
    {
        "body.weight": torch.zeros(1600, (D - head) // 1600),
        "body.bias": torch.zeros((D - head) % 1600),
        "head.weight": torch.zeros(CLASSES, WIDTH),
        "head.bias": torch.zeros(CLASSES),
    }
)
assert layout.size == D
rng = torch.Generator().manual_seed(0)
rows = torch.empty(N, D)
for row in rows:
    row.normal_(generator=rng).mul_(0.01).add_(0.01)
rows[:40] = rows[0]  # copies are the costly case of distances


class Trusted:
    def update(self):
        return rows[50]


server = Server(
    model=torch.zeros(D),
    rng=rng,
    spec=DataSpec("rows", (WIDTH,), CLASSES),
    predict=lambda model, inputs: inputs @ model[-head:-CLASSES].view(CLASSES, WIDTH).T,
    trusted=Trusted(),
)
rule = plugins.build(group, options, "strategy")
if group == "before":
    assert rule.mix(rows, server).rows.shape == rows.shape
else:
    cohort = Cohort(
        round=1,
        partitions=tuple(range(N)),
        updates=rows,
        examples=torch.full((N,), 100),
        layout=layout,
    )
    _, decision = rule.step(rule.init(server.model), cohort, server)
    assert decision.update.isfinite().all()
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
"""

OPTIONS = {
    "trimmed_mean": {"byzantine": 40},
    "krum": {"byzantine": 40},
    "multi_krum": {"byzantine": 40},
    "centred_clipping": {"radius": 1.0, "iterations": 3},
    "norm_clipping": {"bound": 1.0, "noise": 1e-4},
    "rlr": {"threshold": 40},
    "deepsight": {"samples": 2048, "draws": 1},
    "fedadam": {"learning_rate": 0.1},
    "fedyogi": {"learning_rate": 0.1},
}
CASES = [("strategies", {"kind": kind, **OPTIONS.get(kind, {})}) for kind in plugins.available("strategies")]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("group", "options"), [*CASES, ("before", {"kind": "nnm", "byzantine": 40})], ids=lambda case: str(case)
)
def test_a_large_cohort_fits_into_3_gigabytes(group, options):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, group, repr(options)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert float(done.stdout.split()[-1]) < LIMIT
