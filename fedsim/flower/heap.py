"""Cheap collections for code of Flower's that asks for one per array.

`ArrayRecord.to_numpy_ndarrays(keep_input=False)`, as QFedAvg and Bulyan call it, runs `gc.collect()` every
time. A collection walks all objects of the process, also the hundred thousands of its imported modules.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def frozen_heap() -> Iterator[None]:
    """In this scope collections walk only objects made in it; afterwards all are walked again."""
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
