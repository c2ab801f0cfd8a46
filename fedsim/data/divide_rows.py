"""Rows among clients: a held-out test set, contiguous views, statistics of the training rows only."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedsim.contracts import DataSpec
from fedsim.data.examples import Rows
from fedsim.data.pool import Integers, RowPool
from fedsim.data.roles import Divided, Roles, by_client, laid_out
from fedsim.data.split import apportion, stratified
from fedsim.errors import DataError
from fedsim.rng import numpy_stream

_CHUNK = 4096  # rows converted to float64 at once, for statistics
_SHOWN = 16  # statistics of at most so many channels or columns are facts


def hold_out(pool: RowPool, seed: int) -> RowPool:
    """The pool after its `limit`, and with a stratified test set of its own."""
    labels = pool.rows.y.numpy()
    kept = np.arange(len(labels))
    if pool.limit is not None and pool.limit < len(labels):
        sizes = np.array([pool.limit, len(labels) - pool.limit])
        kept = np.sort(stratified(labels, sizes, numpy_stream(seed, "data.limit"))[0])
    if pool.test is not None:
        return pool if len(kept) == len(labels) else _chosen(pool, kept)
    sizes = apportion(len(kept), np.array([1.0 - pool.test_fraction, pool.test_fraction]))
    if not sizes.all():
        raise DataError(
            f"{pool.name} has {len(kept)} rows, too few for data.test_fraction = {pool.test_fraction}."
        )
    train, test = stratified(labels[kept], sizes, numpy_stream(seed, "data.holdout"))
    held = _chosen(pool, kept[np.sort(test)])
    return replace(
        _chosen(pool, kept[np.sort(train)]), test=held.rows, test_origin="held out before the division"
    )


def take_rows(pool: RowPool, count: int, seed: int) -> tuple[RowPool, Rows]:
    """The pool without `count` of its rows, stratified by label, and those rows."""
    labels = pool.rows.y.numpy()
    sizes = np.array([count, len(labels) - count])
    taken, rest = stratified(labels, sizes, numpy_stream(seed, "data.trusted"))
    return _chosen(pool, np.sort(rest)), _taken(pool.rows, np.sort(taken))


def divide_rows(pool: RowPool, parts: list[Integers], roles: Roles) -> Divided:
    """The clients' views into one reordered copy of the rows; order: all train, all val, all test parts."""
    splits = roles.split(parts, pool.rows.y.numpy())
    order, bounds = laid_out(splits)
    rows = _taken(pool.rows, order)
    if pool.standardise is not None:
        mean, std = statistics(rows.x[: bounds[len(parts)]], pool.standardise)
        rows = replace(rows, mean=mean, std=std)
    spec = DataSpec("rows", tuple(rows.x.shape[1:]), pool.classes)
    views = [rows.part(start, stop) for start, stop in pairwise(bounds)]
    test = None if pool.test is None else replace(pool.test, mean=rows.mean, std=rows.std)
    facts: dict[str, Any] = {
        "server_test": pool.test_origin,
        "server_test_size": 0 if test is None else len(test),
    }
    if rows.mean is not None and rows.std is not None and rows.mean.numel() <= _SHOWN:
        facts |= {"mean": rows.mean.flatten().tolist(), "std": rows.std.flatten().tolist()}
    return Divided(by_client(views, spec), test, facts)


def statistics(x: Tensor, where: Tensor) -> tuple[Tensor, Tensor]:
    """Float32 mean and standard deviation of training inputs, over all that `where` broadcasts over.

    Args:
        x: [n, ...].
        where: bool, shaped like one input with 1 in the averaged dimensions; False: mean 0 and deviation 1.

    Returns:
        Both shaped like `where`; a constant column has deviation 1.
    """
    array, mask = x.numpy(), where.numpy()
    averaged = (0, *(1 + axis for axis, size in enumerate(mask.shape) if size == 1))
    count = array.size // mask.size
    chunks = [array[start : start + _CHUNK] for start in range(0, len(array), _CHUNK)]
    # NumPy adds in one thread: the same bits whatever the number of threads.
    mean = sum(chunk.sum(axis=averaged, dtype=np.float64, keepdims=True)[0] for chunk in chunks) / count
    square = sum(np.square(chunk - mean).sum(axis=averaged, keepdims=True)[0] for chunk in chunks) / count
    std = np.where(mask & (square > 0.0), np.sqrt(square), 1.0)
    return torch.from_numpy(np.where(mask, mean, 0.0)).float(), torch.from_numpy(std).float()


def _taken(rows: Rows, index: Integers) -> Rows:
    at = torch.from_numpy(index)
    return replace(rows, x=rows.x.index_select(0, at), y=rows.y.index_select(0, at))


def _chosen(pool: RowPool, index: Integers) -> RowPool:
    ids = None if pool.ids is None else pool.ids[torch.from_numpy(index)]
    return replace(pool, rows=_taken(pool.rows, index), ids=ids)
