"""Image and tabular data sets of the Hugging Face hub: from a mirror of parquet files, or downloaded once.

The columns are declared or detected. Decoded arrays are cached under the digest of the files: decoding
60,000 images takes much longer than reading them back.
"""

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from fedsim.data.columns import Columns, chosen_columns
from fedsim.data.examples import Rows
from fedsim.data.hub_files import dataset_folder, notes, read_split, split_files
from fedsim.data.images import decoded, pooled
from fedsim.data.pool import Pool, RowPool
from fedsim.data.store import Arrays, cached, digests, key_of, mirror_folder
from fedsim.data.tables import encoded, label_codes, present
from fedsim.errors import ConfigError, DataError
from fedsim.rng import numpy_stream

_FORMAT = 1  # of the cached arrays
_WHITE = 255.0
_NAMES_SHOWN = 200  # class names among the facts


@dataclass(frozen=True, kw_only=True)
class Hub:
    """One data set of images, or of numeric and categorical columns.

    Attributes:
        name: "owner/name" on the hub, such as "uoft-cs/cifar10".
        mirror: a folder with parquet files at hub/<name>/<subset>/<split>-*.parquet (also without hub/ or
            <subset>/), tried first; default: FEDSIM_DATA_MIRROR.
        subset: the hub's "configuration"; needed where a set has several.
        train_split: the split that is divided among clients.
        test_split: the server's test set; default: "test" where there is one, else a fraction is held out.
        test_fraction: of the rows, held out where there is no test split.
        image: the image column; default: the one that there is.
        label: the label column; default: the declared class column, or one called label.
        features: the columns of a tabular set; default: all but label and ids.
        categorical: features to one-hot encode although they are numbers; text always is.
        drop: columns to leave out.
        id_column: whose row it is, for `partition = "natural"`; never a feature.
        missing: rows with missing values: "refuse" the data set, or "drop" the rows.
        normalize: "standard": remove mean and deviation of the clients' training rows, per channel or numeric
            column; "unit": images to [0, 1], columns as they are.
        size: images are resized to size x size pixels; needed where they differ.
        pool: after that, blocks of pool x pool pixels are replaced by their mean, rounded to a whole value;
            must divide the height and the width.
        limit: keep a random subset of this many rows of `train_split`.
        test_limit: keep a random subset of this many rows of the test split, the same for every seed.
    """

    name: str
    mirror: str | None = None
    subset: str | None = None
    train_split: str = "train"
    test_split: str | None = None
    test_fraction: float = 0.2
    image: str | None = None
    label: str | None = None
    features: tuple[str, ...] | None = None
    categorical: tuple[str, ...] = ()
    drop: tuple[str, ...] = ()
    id_column: str | None = None
    missing: Literal["refuse", "drop"] = "refuse"
    normalize: Literal["standard", "unit"] = "standard"
    size: int | None = None
    pool: int | None = None
    limit: int | None = None
    test_limit: int | None = None

    def __post_init__(self) -> None:
        for key, value in (("name", self.name), ("subset", self.subset)):
            if value is not None and not re.fullmatch(r"\w[\w.-]*(/\w[\w.-]*)?", value):
                raise ConfigError(f"{key} must look like owner/name on the hub, found {value!r}.")
        if not 0.0 < self.test_fraction < 1.0:
            raise ConfigError(f"test_fraction must lie between 0 and 1, found {self.test_fraction}.")
        for key in ("size", "pool", "limit", "test_limit"):
            number = getattr(self, key)
            if number is not None and number < 1:
                raise ConfigError(f"{key} must be at least 1, found {number}.")

    def load(self) -> tuple[Pool, ...]:
        """See `fedsim.data.pool.Source`."""
        folder, source = dataset_folder(self.name, self.subset, self.train_split, mirror_folder(self.mirror))
        files = split_files(folder, self.train_split)
        test_split = self.test_split or "test"
        test_files = split_files(folder, test_split)
        if self.test_split and not test_files:
            raise DataError(f"{folder} has no files {test_split}-*.parquet for data.test_split.")
        sums = digests(folder, files + test_files)
        reading = (self.image, self.label, self.features, self.categorical, self.drop, self.id_column)
        key = key_of(
            "hub", _FORMAT, sums, self.train_split, test_split, reading, self.missing, self.size, self.pool
        )
        arrays = cached(key, lambda: self._arrays(files, test_files))
        facts = {"source": source, "sha256": sums} | notes(folder, self.name) | _described(arrays)
        return (self._pool(arrays, facts),)

    def _pool(self, arrays: Arrays, facts: dict[str, Any]) -> RowPool:
        rows = Rows(torch.from_numpy(arrays["train_x"]), torch.from_numpy(arrays["train_y"]))
        if rows.x.dtype == torch.uint8:
            rows = replace(rows, white=_WHITE)
        test = None
        if "test_y" in arrays:
            kept = _some(len(arrays["test_y"]), self.test_limit)
            test = Rows(torch.from_numpy(arrays["test_x"][kept]), torch.from_numpy(arrays["test_y"][kept]))
        standardise = torch.from_numpy(arrays["standardise"])
        if self.normalize == "unit" and rows.x.dtype == torch.uint8:
            zero, white = torch.zeros(standardise.shape), torch.full(standardise.shape, _WHITE)
            rows = replace(rows, mean=zero, std=white)
        return RowPool(
            name=self.name,
            rows=rows,
            classes=len(arrays["classes"]),
            test=test,
            test_fraction=self.test_fraction,
            standardise=standardise if self.normalize == "standard" else None,
            limit=self.limit,
            ids=torch.from_numpy(arrays["ids"]) if "ids" in arrays else None,
            facts=facts,
        )

    def _arrays(self, files: list[Path], test_files: list[Path]) -> Arrays:
        """Everything decoded: x, y of both splits, class names, ids, what to standardise."""
        tables = [read_split(paths) for paths in (files, test_files) if paths]
        columns = chosen_columns(tables[0], self.image, self.label, self.features, self.drop, self.id_column)
        tables, dropped = present(tables, columns, self.missing)
        labels, names = label_codes([table.column(columns.label) for table in tables], tables[0], columns)
        inputs, standardise, described = self._inputs(tables, columns)
        arrays: dict[str, Any] = {"classes": names, "standardise": standardise, "columns": described}
        for split, x, y in zip(("train", "test"), inputs, labels, strict=False):
            arrays |= {f"{split}_x": x, f"{split}_y": y}
        if columns.id_column:
            values = tables[0].column(columns.id_column).to_numpy()
            arrays["ids"] = np.unique(values, return_inverse=True)[1].astype(np.int64)
        return arrays | {"dropped": np.array(dropped)}

    def _inputs(self, tables: list[Any], columns: Columns) -> tuple[list[Any], Any, Any]:
        """Inputs of each split, where to standardise, and what the inputs are, in words."""
        if columns.image is None:
            return encoded(tables, columns.features, self.categorical)
        images = decoded([table.column(columns.image) for table in tables], self.size, columns.image)
        images = [pooled(part, self.pool) for part in images] if self.pool else images
        channels = images[0].shape[1]
        return images, np.ones((channels, 1, 1), dtype=bool), np.array([columns.image])


def _some(rows: int, limit: int | None) -> Any:
    """Which rows to keep: all of them, or a random subset in their order."""
    if limit is None or limit >= rows:
        return slice(None)
    return np.sort(numpy_stream(0, "data.test_limit").permutation(rows)[:limit])


def _described(arrays: Arrays) -> dict[str, Any]:
    return {
        "classes": arrays["classes"][:_NAMES_SHOWN].tolist(),
        "inputs": arrays["columns"][:_NAMES_SHOWN].tolist(),
        "dropped_rows": int(arrays["dropped"]),
    }
