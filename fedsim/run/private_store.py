"""Private client state on the driver's side: in memory, and on disk above a limit.

A client's tensors change only when its round is committed, so a retry starts from the committed state.
A file once written is never changed: its name carries partition, version and a digest of its content, and it
is removed only after `sweep`, when no checkpoint needs it any more.
"""

import math
from collections.abc import Mapping
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from fedsim.contracts import Tensors
from fedsim.errors import CheckpointError
from fedsim.params import digest
from fedsim.run.atomic_files import save_tensors

_DIGEST = 32  # hexadecimal digits


class PrivateStore:
    """One entry per partition that has private tensors."""

    def __init__(self, folder: Path, limit: float = math.inf) -> None:
        """Keep up to `limit` bytes in memory, the rest in `folder` (made when first needed)."""
        self._folder = folder
        self._limit = limit
        self._memory: dict[int, dict[str, Tensor]] = {}  # least recently committed first
        self._files: dict[int, str] = {}
        self._bytes = 0
        self._version = 0

    def get(self, partition: int) -> Tensors | None:
        """A client's committed tensors, or None before its first round."""
        if partition in self._memory:
            return self._memory[partition]
        if partition in self._files:
            return load_file(self._folder / self._files[partition])
        return None

    def put(self, partition: int, tensors: Tensors) -> None:
        """Replace a client's tensors; an empty mapping is kept too: it says that the client has begun."""
        self._forget(partition)
        # A view of a larger buffer would keep that whole buffer alive between rounds.
        kept = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
        self._memory[partition] = kept
        self._bytes += _size(kept)
        self._version += 1
        while self._bytes > self._limit:
            self._spill(next(iter(self._memory)))

    def _spill(self, partition: int) -> None:
        tensors = self._memory.pop(partition)
        self._bytes -= _size(tensors)
        name = f"{partition:06d}-{self._version:09d}-{digest(tensors)[:_DIGEST]}.safetensors"
        save_tensors(self._folder / name, tensors)
        self._files[partition] = name

    def _forget(self, partition: int) -> None:
        self._files.pop(partition, None)
        self._bytes -= _size(self._memory.pop(partition, {}))

    def snapshot(self) -> tuple[Mapping[int, Tensors], Mapping[int, str]]:
        """(tensors in memory by partition, names of files by partition)."""
        return dict(self._memory), dict(self._files)

    def restore(self, memory: Mapping[int, Tensors], files: Mapping[int, str]) -> None:
        """Continue from a snapshot.

        Raises:
            CheckpointError: a file of the snapshot is gone, or not as it was written.
        """
        for partition, name in files.items():
            self._verify(partition, name)
        self._memory, self._files, self._bytes = {}, dict(files), 0
        versions = [int(name.split("-")[1]) for name in files.values()]
        self._version = max(versions, default=0)
        for partition in sorted(memory):
            self.put(partition, memory[partition])

    def _verify(self, partition: int, name: str) -> None:
        path, wanted = self._folder / name, Path(name).stem.rpartition("-")[2]
        if not path.is_file():
            raise CheckpointError(
                f"The private state of client {partition} is gone: no {name} in the run's folder."
            )
        try:
            found = digest(load_file(path))
        except (SafetensorError, OSError, ValueError) as error:
            raise CheckpointError(f"{path}: cannot be read: {error}") from error
        if found[:_DIGEST] != wanted:
            raise CheckpointError(
                f"{path}: the private state of client {partition} was damaged or changed after it was "
                "written: put back a copy, or start anew without --resume."
            )

    def sweep(self) -> None:
        """Remove files that no partition uses any more; call it once a checkpoint is safely written."""
        if self._folder.is_dir():
            used = set(self._files.values())
            for path in self._folder.glob("*.safetensors"):
                if path.name not in used:
                    path.unlink()


def _size(tensors: Tensors) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
