"""Parquet files in the layout of the Hugging Face hub: found in a mirror, in the cache, or downloaded."""

import os
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import pyarrow as arrow
import pyarrow.parquet as parquet

from fedsim.data.store import downloads_folder, placed, reachable
from fedsim.errors import DataError


def dataset_folder(name: str, subset: str | None, split: str, mirror: Path | None) -> tuple[Path, str]:
    """The folder with the parquet files of a set, and where it was: "mirror", "cache" or "download".

    Args:
        name: owner/name.
        subset: the configuration, or None where there is only one.
        split: a split that the folder must hold.
        mirror: tried first.

    Raises:
        DataError: it is nowhere, or several subsets fit.
    """
    places = [(mirror / "hub" / name, "mirror"), (mirror / name, "mirror")] if mirror else []
    places.append((downloads_folder() / "hub" / name, "cache"))
    for place, source in places:
        if folder := _subset_folder(place, subset, split):
            return folder, source
    target = places[-1][0] / (subset or "default")
    _download(name, subset, target, ", ".join(str(place / (subset or "")) for place, _ in places))
    if not split_files(target, split):
        raise DataError(f"The data set {name} has no split {split!r}: set data.train_split.")
    return target, "download"


def _subset_folder(place: Path, subset: str | None, split: str) -> Path | None:
    """Where below `place` the split's files are; with a subset only there."""
    if subset is not None:
        candidates = [place / subset]
    else:
        below = sorted(path for path in place.iterdir() if path.is_dir()) if place.is_dir() else []
        candidates = [place, *below]
    found = [folder for folder in candidates if split_files(folder, split)]
    if len(found) > 1:
        names = ", ".join(folder.name for folder in found)
        raise DataError(f"{place} holds several subsets ({names}): choose one with data.subset.")
    return found[0] if found else None


def split_files(folder: Path, split: str) -> list[Path]:
    """The parquet files of a split, in order."""
    return sorted([*folder.glob(f"{split}-*.parquet"), *folder.glob(f"{split}.parquet")])


def read_split(files: list[Path]) -> arrow.Table:
    """All rows of some parquet files; the first file's declared features stay in the schema.

    Raises:
        DataError: a file is damaged, or they do not fit together.
    """
    try:
        tables = [parquet.ParquetFile(path).read() for path in files]
        return arrow.concat_tables(tables).unify_dictionaries()
    except (arrow.ArrowException, OSError) as error:
        line = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise DataError(f"The parquet files in {files[0].parent} cannot be read: {line}") from error


def notes(folder: Path, name: str) -> dict[str, Any]:
    """Text files that lie beside a mirrored set, such as lists of altered images, by their lengths."""
    owner = folder if folder.name == name.rpartition("/")[2] else folder.parent
    found = {path.name: len(path.read_text().splitlines()) for path in sorted(owner.glob("*.txt"))}
    return {"notes_in_lines": found} if found else {}


def _download(name: str, subset: str | None, target: Path, tried: str) -> None:
    """Fetch all splits through the `datasets` library and keep them as parquet files in `target`."""
    endpoint = os.environ.get("HF_ENDPOINT", "https://huggingface.co")
    host = urlparse(endpoint).hostname or endpoint
    missing = f"The data set {name} is not in {tried}, and"
    if os.environ.get("HF_HUB_OFFLINE", "0").lower() in ("1", "true", "yes", "on"):
        raise DataError(
            f"{missing} HF_HUB_OFFLINE forbids a download: set FEDSIM_DATA_MIRROR or data.mirror."
        )
    if not reachable(host):
        raise DataError(f"{missing} {host} cannot be reached: set FEDSIM_DATA_MIRROR or data.mirror.")
    import datasets  # a second of import, only for downloads

    try:
        splits = datasets.load_dataset(name, subset)
    except Exception as error:  # whatever its many layers raise
        line = str(error).splitlines()[0] if str(error) else "no message"
        raise DataError(
            f"{missing} its download from {host} failed: {type(error).__name__}: {line}"
        ) from error
    with placed(target) as folder:
        for split, dataset in splits.items():
            dataset.to_parquet(folder / f"{split}-00000-of-00001.parquet")
