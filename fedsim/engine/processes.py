"""How a worker's process, or the driver while it works, is set: threads, determinism, end of life."""

import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache

import torch
from threadpoolctl import ThreadpoolController, threadpool_limits  # type: ignore[import-untyped]

# Set before numerical libraries are loaded. CUBLAS_WORKSPACE_CONFIG is what torch asks for in order to
# make cuBLAS deterministic. With THP_MEM_ALLOC_ENABLE, torch asks for large memory in pages of 2 MB: on
# virtual machines, touching fresh memory in pages of 4 KB takes longer than filling it.
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "NUMEXPR_NUM_THREADS": "1",
    "VECLIB_MAXIMUM_THREADS": "1",
    "THP_MEM_ALLOC_ENABLE": "1",
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
}
_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_PARENT_CHECK_SECONDS = 0.5


def settle(device: torch.device) -> None:
    """Set this process to one thread and, on CUDA, to deterministic algorithms; for good."""
    threadpool_limits(1)
    torch.set_num_threads(1)
    if torch.get_num_interop_threads() != 1:  # can be set once, before any parallel work
        torch.set_num_interop_threads(1)
    if device.type == "cuda":
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ENVIRONMENT["CUBLAS_WORKSPACE_CONFIG"])
        torch.cuda.set_device(device)
        torch.backends.cudnn.benchmark = False
        torch.use_deterministic_algorithms(True)


@contextmanager
def working_driver(device: torch.device) -> Iterator[None]:
    """One thread and, on CUDA, deterministic algorithms; what was set before returns afterwards."""
    threads, strict = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    warn_only, benchmark = (
        torch.is_deterministic_algorithms_warn_only_enabled(),
        torch.backends.cudnn.benchmark,
    )
    with _libraries(len(sys.modules)).limit(limits=1):
        torch.set_num_threads(1)
        if device.type == "cuda":
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ENVIRONMENT["CUBLAS_WORKSPACE_CONFIG"])
            torch.backends.cudnn.benchmark = False
            torch.use_deterministic_algorithms(True)
        try:
            yield
        finally:
            if device.type == "cuda":  # the call alone costs a second: it imports torch's compiler
                torch.backends.cudnn.benchmark = benchmark
                torch.use_deterministic_algorithms(strict, warn_only=warn_only)
    torch.set_num_threads(threads)


@lru_cache(maxsize=1)
def _libraries(modules: int) -> ThreadpoolController:
    """The libraries with threads of their own; to find them costs a millisecond.

    Args:
        modules: that Python has imported; with more of them there may be more libraries.
    """
    return ThreadpoolController()


def end_with_parent(parent: int) -> None:
    """End this process, and what it started, when the parent ends, however that happens.

    On Linux the kernel does it, which works while the interpreter is blocked. It acts when the parent's
    *thread* ends that started this process, so that must be the parent's main thread.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    threading.Thread(target=_watch, args=(parent,), daemon=True, name="fedsim-parent").start()


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_PARENT_CHECK_SECONDS)
    os.killpg(0, signal.SIGKILL)  # the worker leads a process group of its own
