"""Where files come from: a read-only mirror, then the user's cache folder, then the network.

The mirror is never written to. The cache holds downloads in the mirror's own layout, and decoded arrays
keyed by the digest of the files they were made from; both appear there in one rename, so that a killed or
a concurrent process leaves nothing half-written.
"""

import hashlib
import os
import shutil
import socket
import sys
import tempfile
import threading
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedsim.errors import DataError

Arrays = Mapping[str, npt.NDArray[Any]]
MIRROR = "FEDSIM_DATA_MIRROR"
CACHE = "FEDSIM_CACHE"


def mirror_folder(declared: str | None) -> Path | None:
    """The mirror: `data.mirror`, else the environment variable FEDSIM_DATA_MIRROR, else None.

    Raises:
        DataError: it is declared but is no folder.
    """
    name = declared or os.environ.get(MIRROR)
    if not name:
        return None
    folder = Path(name).expanduser()
    if not folder.is_dir():
        origin = "data.mirror" if declared else f"the environment variable {MIRROR}"
        raise DataError(f"The mirror {folder} named by {origin} is not a folder.")
    return folder


def cache_folder() -> Path:
    """The environment variable FEDSIM_CACHE, else the platform's cache folder for this user."""
    if chosen := os.environ.get(CACHE):
        return Path(chosen).expanduser()
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA", Path.home())) / "fedsim" / "cache"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "fedsim"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fedsim"


def downloads_folder() -> Path:
    """A second mirror in the cache, filled by downloads."""
    return cache_folder() / "downloads"


def cached(key: str, build: Callable[[], Arrays]) -> Arrays:
    """The arrays kept under `key`, built and kept at the first call.

    Raises:
        DataError: the cache cannot be written, or what it holds cannot be read.
    """
    folder = cache_folder() / "arrays" / key
    if not folder.is_dir():
        arrays = build()
        with placed(folder) as temporary:
            for name, array in arrays.items():
                np.save(temporary / f"{name}.npy", array, allow_pickle=False)
        return arrays
    try:
        return {path.stem: np.load(path, allow_pickle=False) for path in sorted(folder.glob("*.npy"))}
    except (ValueError, OSError) as error:
        raise DataError(
            f"The cached arrays in {folder} cannot be read ({error}): remove that folder."
        ) from error


@contextmanager
def placed(folder: Path) -> Iterator[Path]:
    """A temporary folder that becomes `folder` at the end of the scope, unless another process was faster.

    Raises:
        DataError: the cache cannot be written.
    """
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=".new-", dir=folder.parent))
    except OSError as error:
        raise DataError(
            f"The cache folder {folder.parent} cannot be written ({error.strerror}): "
            f"set the environment variable {CACHE} to a folder of yours."
        ) from error
    try:
        yield temporary
        try:
            temporary.rename(folder)
        except OSError:
            if not folder.is_dir():
                raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def copied(source: Path, target: Path) -> None:
    """Copy the files below `source` with permission to write, which a mirror's files may lack."""
    for path in sorted(source.rglob("*")):
        if path.is_file():
            destination = target / path.relative_to(source)
            destination.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, destination)


def digests(root: Path, files: list[Path]) -> dict[str, str]:
    """SHA-256 of each file, by its path below `root`, in the order of names."""
    found = {}
    for path in sorted(files):
        with path.open("rb") as stream:
            found[path.relative_to(root).as_posix()] = hashlib.file_digest(stream, "sha256").hexdigest()
    return found


def key_of(*parts: object) -> str:
    """A short file name for anything whose `repr` tells it apart."""
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:24]


def reachable(host: str, seconds: float = 5.0) -> bool:
    """Whether a TCP connection to port 443 succeeds; behind a proxy the question is left to the download.

    Libraries retry for half a minute before they admit that there is no network; this does not.
    """
    if urllib.request.getproxies():
        return True
    answers: list[bool] = []

    def connect() -> None:
        try:
            socket.create_connection((host, 443), timeout=seconds).close()
        except OSError:
            return
        answers.append(True)

    thread = threading.Thread(target=connect, daemon=True)  # name resolution takes no time-out
    thread.start()
    thread.join(seconds)
    return bool(answers)
