"""`fedsim check`: what an experiment will do, before it does it."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from fedsim.config import load
from fedsim.data.preflight import preflight
from fedsim.engine.probe import probe
from fedsim.plugins import search_in
from fedsim.report.doctor import available_memory
from fedsim.run.adversary import Adversary
from fedsim.run.assembly import Parts, assemble
from fedsim.run.expectations import refuse_unknown
from fedsim.run.server_evaluation import ServerEvaluation, known_metrics
from fedsim.run.transports import engine_options

FAULT = " [bold red]({})[/bold red]"
MOST_ROWS = 30  # clients that the table lists
PROCESS_BYTES = 350 * 2**20  # of an interpreter with torch, measured on Linux
COPIES_PER_WORKER = 5  # received model, parameters, gradient, optimiser's state, update


def print_preflight(file: Path, overrides: Sequence[str]) -> None:
    """Check an experiment's first seed and print what was found.

    Raises:
        FedsimError: with exit code 2, for everything that would stop the run before its first round.
    """
    search_in(file.parent, Path.cwd())
    experiment = load(file, overrides)
    parts = assemble(experiment, experiment.seeds[0])
    server = ServerEvaluation.of(parts, torch.device("cpu"))
    metrics = known_metrics(parts, server)
    refuse_unknown(experiment, metrics)
    Adversary.of(parts)  # refuses what a run would refuse
    console = Console(highlight=False, soft_wrap=True)
    found = preflight(parts.data)
    _print_data(console, parts, found)
    _print_leakage(console, parts, found)
    _print_plan(console, parts, metrics)
    workers = probe(engine_options(experiment.engine))
    _print_memory(console, parts, found["bytes"], len(workers))
    for seen in workers:
        console.print(
            f"worker {seen['worker']}: device {seen['device']}, {seen['threads']} thread, "
            f"{seen['cores']} usable cores, GPUs visible: {', '.join(seen['cards']) or 'none'}"
        )


def _print_data(console: Console, parts: Parts, found: Mapping[str, Any]) -> None:
    facts = parts.data.facts
    test = "none" if parts.data.test is None else str(len(parts.data.test))
    console.print(
        f"{facts['name']}, seed {parts.seed}: {facts['items']} items, {len(parts.data.clients)} clients, "
        f"{facts['unassigned']} unassigned, {facts['shared_items']} held by several; server test set: {test}"
    )
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for heading in ("client", "train", "val", "test"):
        table.add_column(heading, justify="right")
    table.add_column("training labels", overflow="fold")
    for number, (size, labels) in enumerate(zip(found["sizes"], found["labels"], strict=True)):
        if number < MOST_ROWS:
            table.add_row(
                str(number),
                *(str(size[split]) for split in ("train", "val", "test")),
                " ".join(map(str, labels)),
            )
    console.print(table)
    if len(found["sizes"]) > MOST_ROWS:
        train = sorted(size["train"] for size in found["sizes"])
        console.print(
            f"... and {len(train) - MOST_ROWS} more; training examples per client: "
            f"least {train[0]}, median {train[len(train) // 2]}, most {train[-1]}"
        )
    for split, clients in found["empty"].items():
        if clients:
            console.print(
                f"empty {split} split: {len(clients)} clients ({', '.join(map(str, clients[:10]))})"
            )


def _print_leakage(console: Console, parts: Parts, found: Mapping[str, Any]) -> None:
    leaks, facts = found["leakage"], parts.data.facts
    crossing = sum(one.get("train_in_others_test", 0) for one in facts["sets"])
    shared = leaks["shared_in_client"] + leaks["shared_with_server"]
    others = max(leaks["train_in_others_test"], crossing)
    console.print(
        f"leakage: {shared} training examples also in a test split"
        + (FAULT.format("results will be too good") if shared else "")
        + f"; {others} test examples of a client that another client trains on"
        + (FAULT.format("results will be too good") if others else "")
    )
    several = max(leaks["shared_across_clients"], facts["shared_items"])
    if several:
        declared = getattr(parts.plugins.partition, "overlaps", False)
        console.print(
            f"overlap: {several} examples are in several clients"
            + (", as the partition declares" if declared else FAULT.format("which no partition declares"))
        )
    console.print(
        f"copies inside the data set: {leaks['copies_in_client']} test examples equal a training example of "
        f"their own client, {leaks['copies_in_others_test']} one of another client only, "
        f"{leaks['copies_in_server']} of the server's test one of any client; "
        f"{leaks['copies_across_clients']} different inputs are with several clients"
    )


def _print_plan(console: Console, parts: Parts, metrics: Sequence[str]) -> None:
    experiment, layout = parts.experiment, parts.layout
    console.print(
        f"model: {layout.size:,} shared values, {layout.dtype}; {experiment.rounds} rounds, "
        f"{experiment.federation.clients_per_round} clients each; seeds {list(experiment.seeds)}"
    )
    console.print(f"metrics: {', '.join(metrics)}")
    if parts.malicious:
        console.print(f"malicious: {', '.join(map(str, parts.malicious))}")
    elif experiment.attack is not None:
        console.print("malicious: nobody; the attack does nothing")


def _print_memory(console: Console, parts: Parts, data: int, workers: int) -> None:
    model = parts.layout.size * parts.layout.dtype.itemsize
    rows = model * parts.experiment.federation.clients_per_round * 2  # replies, and the matrix of rows
    extra = 0 if workers == 1 else workers * PROCESS_BYTES
    need = PROCESS_BYTES + extra + data + rows + workers * COPIES_PER_WORKER * model
    free = available_memory()
    console.print(
        f"memory, about: {need / 2**30:.2f} GiB (data {data / 2**30:.2f}, updates {rows / 2**30:.2f}, "
        f"without private tensors and activations); {free / 2**30:.1f} GiB available"
        + (" [bold red](too little)[/bold red]" if need > free else "")
    )
