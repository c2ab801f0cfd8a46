"""Columns of a table to numbers: labels to classes, text to one-hot, missing values never to zeros."""

from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as arrow
import pyarrow.compute as compute

from fedsim.data.columns import Columns
from fedsim.data.pool import Integers
from fedsim.errors import DataError

_CATEGORIES = 1000  # more distinct values than this are names or free text, not a category


def present(
    tables: list[arrow.Table], columns: Columns, missing: Literal["refuse", "drop"]
) -> tuple[list[arrow.Table], int]:
    """The tables without rows that lack a value, and how many rows that cost.

    Raises:
        DataError: a split lacks a column, or `missing` is "refuse" and values are missing.
    """
    kept, lacking, dropped = [], set(), 0
    for number, table in enumerate(tables):
        used = (*columns.used, *((columns.id_column,) if columns.id_column and number == 0 else ()))
        if absent := [name for name in used if name not in table.column_names]:
            raise DataError(f"The test split has no column {', '.join(absent)}.")
        table = table.select(list(used))
        gaps = {name: _is_missing(table.column(name)) for name in used}
        lacking |= {name for name, gap in gaps.items() if gap.any()}
        whole = ~np.any(list(gaps.values()), axis=0)
        dropped += int((~whole).sum())
        kept.append(table.filter(arrow.array(whole)))
    if lacking and missing == "refuse":
        raise DataError(
            f"Values are missing in {', '.join(sorted(lacking))} ({dropped} rows): "
            'set data.missing = "drop", or leave those columns out with data.drop.'
        )
    return kept, dropped


def label_codes(
    labels: list[Any], table: arrow.Table, columns: Columns
) -> tuple[list[Integers], npt.NDArray[np.str_]]:
    """Classes 0..k-1 of each split, and their names: the hub's own numbering, else values in sorted order.

    Raises:
        DataError: a label is not a class: a fraction, or unlabelled (-1).
    """
    names = columns.names(columns.label)
    values = [_plain(column) for column in labels]
    if names is not None and np.issubdtype(values[0].dtype, np.integer):
        codes = [value.astype(np.int64) for value in values]
        if any(code.size and (code.min() < 0 or code.max() >= len(names)) for code in codes):
            raise DataError(
                f"The label column {columns.label!r} has values outside its {len(names)} declared classes "
                "(-1 marks rows without a label): choose another split."
            )
        return codes, np.array(names)
    if np.issubdtype(values[0].dtype, np.floating) and any((value % 1).any() for value in values):
        raise DataError(f"The label column {columns.label!r} holds fractions, not classes: set data.label.")
    classes = np.unique(np.concatenate(values))
    _few(columns.label, len(classes), "set data.label to a column of classes")
    return [np.searchsorted(classes, value).astype(np.int64) for value in values], classes.astype(np.str_)


def encoded(
    tables: list[arrow.Table], features: tuple[str, ...], categorical: tuple[str, ...]
) -> tuple[list[npt.NDArray[np.float32]], npt.NDArray[np.bool_], npt.NDArray[np.str_]]:
    """Float32 features [n, f] of each split, which of the f to standardise, and the names of the f.

    Text and `categorical` columns become one column per value, in sorted order; truth values 0 and 1.

    Raises:
        DataError: a column is neither number, truth value nor text, or has too many values.
    """
    pieces: list[list[npt.NDArray[np.float32]]] = [[] for _ in tables]
    standardise, names = [], []
    for name in features:
        values = [_plain(table.column(name)) for table in tables]
        kind = values[0].dtype.kind
        if kind in "iufb" and name not in categorical:
            blocks, own = [value.astype(np.float32)[:, None] for value in values], [name]
        else:
            classes = np.unique(np.concatenate(values))
            _few(name, len(classes), "leave it out with data.drop")
            blocks = [(value[:, None] == classes).astype(np.float32) for value in values]
            own = [f"{name}={value}" for value in classes]
        names += own
        standardise += [kind in "iuf" and name not in categorical] * len(own)
        for split, block in zip(pieces, blocks, strict=True):
            split.append(block)
    return [np.concatenate(split, axis=1) for split in pieces], np.array(standardise), np.array(names)


def _plain(column: Any) -> npt.NDArray[Any]:
    """A column as numbers, truth values or strings."""
    kind = column.type
    if arrow.types.is_dictionary(kind):
        return _plain(column.cast(kind.value_type))
    if arrow.types.is_decimal(kind):
        return _plain(column.cast(arrow.float64()))
    if arrow.types.is_string(kind) or arrow.types.is_large_string(kind):
        return np.asarray(column.to_pylist(), dtype=np.str_)
    if arrow.types.is_integer(kind) or arrow.types.is_floating(kind) or arrow.types.is_boolean(kind):
        return np.asarray(column.to_numpy())
    raise DataError(f"A column of type {kind} is neither number, truth value nor text: use data.drop.")


def _is_missing(column: Any) -> npt.NDArray[np.bool_]:
    gap = compute.is_null(column, nan_is_null=arrow.types.is_floating(column.type))
    return np.asarray(gap.to_numpy())


def _few(name: str, count: int, advice: str) -> None:
    if count > _CATEGORIES:
        raise DataError(
            f"The column {name!r} has {count} different values, more than {_CATEGORIES}: {advice}."
        )
