"""The full setting on a machine with a CUDA card: says what it will take, then plays it.

    export FEDSIM_DATA_MIRROR=/path/to/mirror
    python experiments/cto_vpa_cifar10/full.py                   # the estimate alone
    python experiments/cto_vpa_cifar10/full.py --measure         # from a few steps on this machine
    python experiments/cto_vpa_cifar10/full.py --run --seeds 0   # then `fedsim sweep full.toml`

A sweep goes on where it stopped. Without `--measure` the estimate rests on ASSUMED, rates of a data-centre
card on which steps of batch 32 are bound by kernel launches. --set changes the file, as for `fedsim sweep`.
"""

import argparse
import math
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import torch

from fedsim.config import Experiment
from fedsim.contracts import Batch, DataSpec
from fedsim.plugins import build
from fedsim.sweep.cells import cells_of
from fedsim.sweep.file import read_sweep

FILE = Path(__file__).with_name("full.toml")
IMAGES, TEST, SHAPE, CLASSES = 50_000, 10_000, (3, 32, 32), 10
SEARCH = 64  # images of a step of stage B, which takes about three training steps of this size
GIB = 2**30
"""Bytes."""


@dataclass(frozen=True)
class Rates:
    """Seconds and bytes of one machine.

    Attributes:
        step: seconds of a training step of the experiment's batch.
        tested: images per second in evaluation.
        search: seconds of a step of stage B.
        memory: bytes of the card at the peak.
        source: where the numbers come from.
    """

    step: float
    tested: float
    search: float
    memory: float
    source: str


ASSUMED = Rates(step=0.012, tested=15_000, search=0.05, memory=5 * GIB, source="assumed, not measured")


def steps_of(experiment: Experiment, epochs: float, clients: int) -> float:
    """Optimiser steps of some clients in a round."""
    each = IMAGES / experiment.federation.clients
    return clients * epochs * math.ceil(each / experiment.client.options["batch_size"])


def minutes(experiment: Experiment, rates: Rates, *, clean: bool) -> float:
    """Of one run; the clean run has no malicious clients and no triggers."""
    attack, honest = experiment.attack, experiment.client.options["epochs"]
    window = attack.window[1] - attack.window[0] + 1
    literal = attack.kind in ("badnets", "neurotoxin", "a3fl", "cto_vpa_literal")
    longer = 0 if clean or literal else 4 - honest  # epochs that a malicious client trains longer
    training = experiment.rounds * steps_of(experiment, honest, experiment.federation.clients_per_round)
    training += window * steps_of(experiment, longer, attack.malicious)
    measured = experiment.rounds / experiment.evaluate.every * TEST * (1 if clean else 4)
    searches = 0.0
    if not clean and attack.kind.startswith(("cto_vpa", "a3fl")):
        every = attack.options.get("repeat", 0)
        steps = attack.options.get("search_steps", 200 if attack.kind == "a3fl" else 500)
        searches = steps * (1 + (window // every if every else 0))
    return (training * rates.step + measured / rates.tested + searches * rates.search) / 60


def measured(experiment: Experiment, device: torch.device) -> Rates:
    """From a few steps of the experiment's model on this machine."""
    spec = DataSpec("rows", SHAPE, CLASSES)
    model = build("models", experiment.model.model_dump(), "model").build(spec).to(device)
    step = _seconds(model, experiment.client.options["batch_size"], device, train=True)
    wide = _seconds(model, SEARCH, device, train=True)
    test = _seconds(model, 1000, device, train=False)
    memory = float(torch.cuda.max_memory_allocated()) if device.type == "cuda" else math.nan
    return Rates(step, 1000 / test, 3 * wide, 3 * memory, f"measured on {device}")


def _seconds(
    model: torch.nn.Module, images: int, device: torch.device, *, train: bool, times: int = 5
) -> float:
    batch = Batch(
        torch.rand(images, *SHAPE, device=device), torch.zeros(images, dtype=torch.int64, device=device)
    )
    optimiser = torch.optim.Adam(model.parameters())
    for number in range(times + 2):
        if number == 2:  # the first two warm up
            _wait(device)
            start = time.perf_counter()
        with torch.set_grad_enabled(train):
            logits = model(batch)
            if train:
                optimiser.zero_grad()
                torch.nn.functional.cross_entropy(logits, batch.y).backward()
                optimiser.step()
    _wait(device)
    return (time.perf_counter() - start) / times


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def told(overrides: list[str], seeds: int, measure: bool) -> list[str]:
    """The estimate, in lines."""
    cells = cells_of(read_sweep(FILE, overrides))
    first = cells[0].experiment
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    rates = measured(first, device) if measure else ASSUMED
    runs = {cell.choices["attack"]: minutes(cell.experiment, rates, clean=False) for cell in cells}
    clean = minutes(first, rates, clean=True)
    parameters = sum(p.numel() for p in _model(first).parameters())
    kept = math.ceil(first.rounds / first.evaluate.every) * 4 * parameters
    rows = first.federation.clients_per_round * parameters * 4
    lines = [
        f"rates: {rates.source}: {rates.step * 1e3:.1f} ms a step, {rates.tested:.0f} images tested a second"
    ]
    lines += [f"{name}: {spent:.0f} minutes a seed" for name, spent in runs.items()]
    lines += [
        f"clean run, shared by all: {clean:.0f} minutes a seed",
        f"together: {seeds * (clean + sum(runs.values())) / 60:.1f} hours for {seeds} seeds, one run at once",
        f"card: about {rates.memory / GIB:.1f} GiB" if rates.memory == rates.memory else "card: none here",
        f"host: about {(6 * rows) / GIB + 2:.1f} GiB; disk: {seeds * kept / GIB:.1f} GiB of clean models",
    ]
    return lines


def _model(experiment: Experiment) -> torch.nn.Module:
    return build("models", experiment.model.model_dump(), "model").build(DataSpec("rows", SHAPE, CLASSES))


def main() -> int:
    asked = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    asked.add_argument("--measure", action="store_true", help="time a few steps here")
    asked.add_argument("--run", action="store_true", help="play it after the estimate")
    asked.add_argument("--seeds", default="0,1,2,3,4")
    asked.add_argument("--out", default="runs/cto_vpa_cifar10_full/sweep")
    asked.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    options = asked.parse_args()
    print("\n".join(told(options.set, len(options.seeds.split(",")), options.measure)))
    if not options.run:
        return 0
    if not torch.cuda.is_available():
        print("No CUDA card: nothing was run.", file=sys.stderr)
        return 2
    words = ["--out", options.out, "--seeds", options.seeds, "--jobs", "1"]
    changes = [word for one in options.set for word in ("--set", one)]
    return subprocess.call([sys.executable, "-m", "fedsim", "sweep", str(FILE), *words, *changes])


if __name__ == "__main__":
    sys.exit(main())
