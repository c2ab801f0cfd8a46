"""A plain PyTorch loop over the clients of a round, one thread: what a careful user writes by hand."""

import sys
from pathlib import Path

import torch
from peers.conductor import Conductor
from peers.local_training import LocalTraining
from peers.planned import Planned
from peers.torch_networks import network, read, write


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    conductor, plan = Conductor(), Planned(folder)
    training = LocalTraining(plan, network(plan.known))
    vector, number = torch.from_numpy(plan.initial), 0
    conductor.vector = lambda: vector.numpy()
    while conductor.wants_round():
        number += 1
        total, examples = torch.zeros_like(vector), 0
        for place in range(len(plan.cohort(number))):
            write(training.model, vector)
            count = training.epoch(number, place)
            total.add_(read(training.model), alpha=count)
            examples += count
        vector = total / examples
        conductor.round_done()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
