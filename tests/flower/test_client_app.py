import torch

from fedsim.engine.protocols import Task
from fedsim.flower.client_app import Settled


class Threads:
    """A handler that tells with how many threads torch computes."""

    def run(self, broadcast, task):
        return [torch.get_num_threads()] * len(task.items)


def test_clients_compute_with_one_thread_in_flower_s_own_processes_too():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        assert Settled(Threads(), torch.device("cpu")).run(None, Task((3,), (None,))) == [1]
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
