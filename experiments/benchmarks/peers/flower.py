"""Flower's own simulation: `run_simulation` with its Ray backend, an actor per core."""

import os
import sys
from pathlib import Path

import torch
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from flwr.simulation import run_simulation
from peers.conductor import Conductor
from peers.flower_app import FOLDER, Rounds, client_app
from peers.planned import Planned


def main(folder: Path) -> None:
    os.environ[FOLDER] = str(folder)
    torch.set_num_threads(1)
    conductor, plan, cores = Conductor(), Planned(folder), len(os.sched_getaffinity(0))
    app = ServerApp()

    @app.main()
    def play(grid: Grid, context: Context) -> None:
        rounds = Rounds(plan)
        conductor.vector = rounds.vector
        while conductor.wants_round():
            rounds.play(grid)
            conductor.round_done()

    resources = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}, "init_args": {"num_cpus": cores}}
    run_simulation(app, client_app, num_supernodes=plan.known["clients"], backend_config=resources)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
