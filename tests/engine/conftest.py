import contextlib
import ctypes
import os
import signal
import time

import pytest
import torch


def _acts():
    """What a client of these tests can be told to do, by name; nested, so that it travels by value."""

    def segfault():
        ctypes.string_at(0)

    def unpicklable():
        return lambda: (yield)

    def fail():
        raise ValueError("the client's own words")

    return {
        "exit": lambda: os._exit(7),
        "leave": lambda: __import__("sys").exit(3),
        "sigkill": lambda: os.kill(os.getpid(), signal.SIGKILL),
        "segfault": segfault,
        "hang": lambda: time.sleep(600),
        "raise": fail,
        "unpicklable": lambda: (x for x in ()),
        "pid": os.getpid,
        "threads": torch.get_num_threads,
    }


@pytest.fixture(scope="session")
def actor():
    """A set-up whose clients do what their payload says, or give a number that depends on their data."""
    acts = _acts()

    class Actor:
        def __init__(self, data, place):
            self.data, self.place = data, place

        def run(self, broadcast, task):
            return [self.one(broadcast, *pair) for pair in zip(task.items, task.payloads, strict=True)]

        def one(self, broadcast, item, payload):
            if callable(payload):
                return payload(self, broadcast, item)
            if payload is not None:
                return acts[payload]()
            noise = torch.randn(50, generator=torch.Generator().manual_seed(item))
            return (self.data[item % len(self.data)] @ noise).sum().item() * broadcast

    def set_up(data, place):
        return Actor(data, place)

    return set_up


@pytest.fixture(scope="session")
def clients_data():
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(40, 50, generator=generator) for _ in range(8)]


@pytest.fixture(scope="session")
def ended():
    """Whether processes are gone, given a few seconds."""

    def wait(processes, seconds=10.0):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if not any(_lives(process) for process in processes):
                return True
            time.sleep(0.05)
        return False

    return wait


def _lives(process):
    with contextlib.suppress(OSError), open(f"/proc/{process}/stat") as file:
        return file.read().rpartition(")")[2].split()[0] != "Z"
    return False
