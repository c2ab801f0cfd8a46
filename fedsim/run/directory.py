"""The folder of one seed's run: what was asked, each round as it ends, the result, the model.

manifest.json        config, digest, versions, hardware, data; written before round 1
rounds.jsonl         one line per finished round, on disk before the next begins
result.json          status, metrics, failures, timing
model.safetensors    the shared tensors
curves.png           metrics over rounds
checkpoint.safetensors, private/     what `--resume` continues from
"""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fedsim.contracts import Tensors
from fedsim.errors import CheckpointError, ConfigError
from fedsim.run.atomic_files import finite, save_json, save_tensors


@dataclass(frozen=True)
class RunDirectory:
    """Paths and writers of one run's folder."""

    path: Path

    @property
    def rounds(self) -> Path:
        """One JSON line per round."""
        return self.path / "rounds.jsonl"

    @property
    def checkpoint(self) -> Path:
        """What a resume continues from."""
        return self.path / "checkpoint.safetensors"

    @property
    def private(self) -> Path:
        """Folder of private tensors that do not fit in memory."""
        return self.path / "private"

    @property
    def result(self) -> Path:
        """How the run ended."""
        return self.path / "result.json"

    def create(self) -> None:
        """Make the folder, with an empty list of rounds."""
        self.path.mkdir(parents=True, exist_ok=True)
        self.rounds.write_bytes(b"")

    def write_manifest(self, manifest: Mapping[str, Any]) -> None:
        """Replace manifest.json."""
        save_json(self.path / "manifest.json", manifest)

    def append(self, record: Mapping[str, Any]) -> int:
        """Add one round and wait until it is on disk; returns the length of the file in bytes."""
        line = json.dumps(finite(record), allow_nan=False, ensure_ascii=False) + "\n"
        with self.rounds.open("ab") as stream:
            stream.write(line.encode())
            stream.flush()
            os.fsync(stream.fileno())
            return stream.tell()

    def rewind(self, length: int) -> list[dict[str, Any]]:
        """The records in the first `length` bytes; what follows, such as half a line, is cut off.

        Raises:
            CheckpointError: the file is shorter, or not one of ours.
        """
        content = self.rounds.read_bytes() if self.rounds.is_file() else b""
        if len(content) < length:
            raise CheckpointError(
                f"{self.rounds}: has {len(content)} bytes, but the checkpoint was written after {length}."
            )
        try:
            records = [json.loads(line) for line in content[:length].splitlines()]
        except ValueError as error:
            raise CheckpointError(
                f"{self.rounds}: a line before the checkpoint is not JSON: {error}"
            ) from error
        with self.rounds.open("ab") as stream:
            stream.truncate(length)
            os.fsync(stream.fileno())
        return records

    def read_result(self) -> dict[str, Any] | None:
        """How the run ended, or None while it has not.

        Raises:
            CheckpointError: result.json is not JSON.
        """
        try:
            result: dict[str, Any] = json.loads(self.result.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise CheckpointError(f"{self.result}: is not JSON: {error}") from error
        return result

    def write_result(self, result: Mapping[str, Any]) -> None:
        """Replace result.json."""
        save_json(self.result, result)

    def write_model(self, tensors: Tensors, sha256: str) -> None:
        """Replace model.safetensors."""
        save_tensors(self.path / "model.safetensors", tensors, {"model_sha256": sha256})


def fresh_folder(name: str, out: Path | None) -> Path:
    """A folder for a new run: `out`, or `runs/NAME/TIME`.

    Raises:
        ConfigError: `out` already holds something.
    """
    if out is not None:
        if out.exists() and (not out.is_dir() or any(out.iterdir())):
            raise ConfigError(f"--out {out}: already holds something; give another folder, or add --resume.")
        return out
    stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    parent = Path("runs") / name
    for number in range(1, 1000):
        folder = parent / (stamp if number == 1 else f"{stamp}-{number}")
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            continue
        return folder
    raise ConfigError(f"{parent / stamp}: a thousand runs in one second; give --out.")


def latest_folder(name: str, out: Path | None) -> Path:
    """The folder to resume: `out`, or the newest under `runs/NAME`.

    Raises:
        CheckpointError: there is none.
    """
    if out is not None:
        if not out.is_dir():
            raise CheckpointError(f"--out {out}: no such run to resume.")
        return out
    parent = Path("runs") / name
    found = sorted(path for path in parent.glob("*") if path.is_dir())
    if not found:
        raise CheckpointError(f"{parent}: holds no run to resume; start one without --resume.")
    return found[-1]


def seed_folder(folder: Path, seed: int, seeds: int) -> RunDirectory:
    """A single seed lives in the run's folder itself, several in folders of their own."""
    return RunDirectory(folder if seeds == 1 else folder / f"seed-{seed}")
