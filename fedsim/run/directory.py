"""The folder of one seed's run: what was asked, each round as it ends, the result, the model.

manifest.json        config, digest, versions, hardware, data; written before round 1
rounds.jsonl         one line per finished round, written before the next begins
result.json          status, metrics, failures, timing
model.safetensors    the shared tensors
curves.png           metrics over rounds
checkpoint.safetensors, private/     what `--resume` continues from
"""

import fcntl
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fedsim.contracts import Tensors
from fedsim.errors import CheckpointError, ConfigError
from fedsim.run.atomic_files import remove_partial, save_json, save_tensors


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
        """Begin an empty list of rounds; the folder is there, see `claim`."""
        self.rounds.write_bytes(b"")

    def claim(self) -> int:
        """Make the folder, and keep other runs out of it while the returned file is open.

        Raises:
            ConfigError: it cannot be written to, or another run is at work in it.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            file = os.open(self.path, os.O_RDONLY)
        except OSError as error:
            raise ConfigError(f"{self.path}: cannot be the folder of a run: {error}.") from error
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(file)
            raise ConfigError(f"{self.path}: another run is at work in this folder; wait for it.") from None
        except OSError:  # a file system without locks
            pass
        remove_partial(self.path, self.private)
        return file

    def discard(self) -> None:
        """Undo `create` and `write_manifest` where nothing else was written."""
        for name in ("rounds.jsonl", "manifest.json"):
            (self.path / name).unlink(missing_ok=True)
        if not any(self.path.iterdir()):
            self.path.rmdir()

    def write_manifest(self, manifest: Mapping[str, Any]) -> None:
        """Replace manifest.json."""
        save_json(self.path / "manifest.json", manifest)

    def read_manifest(self) -> dict[str, Any]:
        """manifest.json; empty where there is none.

        Raises:
            CheckpointError: it is not JSON, or not a manifest.
        """
        path = self.path / "manifest.json"
        try:
            found: Any = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {}
        except ValueError as error:
            raise CheckpointError(f"{path}: is not JSON: {error}") from error
        if not isinstance(found, dict) or not isinstance(found.get("config", {}), dict):
            raise CheckpointError(f"{path}: is not the manifest of a run.")
        return found

    def read_tier(self) -> str | None:
        """The tier in the manifest, if it was measured; a resumed run keeps it."""
        known = self.read_manifest()
        return (
            known.get("tier") if known.get("config", {}).get("engine", {}).get("tier") == "measured" else None
        )

    def read_code(self) -> str | None:
        """What made the run, see `fedsim.run.code`; None where the manifest does not tell."""
        try:
            found = self.read_manifest().get("code")
        except (OSError, CheckpointError):
            return None
        return found if isinstance(found, str) else None

    def append(self, record: Mapping[str, Any]) -> int:
        """Add one round of finite values, for every reader at once; returns the bytes of the file."""
        line = json.dumps(record, allow_nan=False, ensure_ascii=False) + "\n"
        with self.rounds.open("ab") as stream:
            stream.write(line.encode())
            return stream.tell()

    def keep_rounds(self) -> None:
        """Wait until all rounds are on disk, as a checkpoint that counts on them must."""
        with self.rounds.open("ab") as stream:
            os.fsync(stream.fileno())

    def rewind(self, length: int, rounds: int) -> list[dict[str, Any]]:
        """The records in the first `length` bytes; what follows, such as half a line, is cut off.

        Args:
            length: bytes of the file when the checkpoint was written.
            rounds: finished by then.

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
        if [_number(record) for record in records] != list(range(1, rounds + 1)):
            raise CheckpointError(f"{self.rounds}: does not hold the {rounds} rounds before the checkpoint.")
        with self.rounds.open("ab") as stream:
            stream.truncate(length)
            os.fsync(stream.fileno())
        return records

    def read_result(self) -> dict[str, Any] | None:
        """How the run ended, or None while it has not.

        Raises:
            CheckpointError: result.json is not JSON, or not a result.
        """
        try:
            result: Any = json.loads(self.result.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise CheckpointError(f"{self.result}: is not JSON: {error}") from error
        if not isinstance(result, dict) or not {"status", "digest"} <= set(result):
            raise CheckpointError(f"{self.result}: is not the result of a run; remove it to go on.")
        return result

    def write_result(self, result: Mapping[str, Any]) -> None:
        """Replace result.json."""
        save_json(self.result, result)

    def write_model(self, tensors: Tensors, sha256: str) -> None:
        """Replace model.safetensors."""
        save_tensors(self.path / "model.safetensors", tensors, {"model_sha256": sha256})


def _number(record: Any) -> int | None:
    return record.get("round") if isinstance(record, dict) and "metrics" in record else None


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
        except OSError as error:
            raise ConfigError(f"{folder}: cannot be made: {error}; give --out.") from error
        return folder
    raise ConfigError(f"{parent / stamp}: a thousand runs in one second; give --out.")


def latest_folder(name: str, seeds: int, out: Path | None) -> Path:
    """The folder to resume: `out`, or the newest under `runs/NAME` that holds a run of as many seeds.

    Raises:
        CheckpointError: there is none.
    """
    where = Path("runs") / name if out is None else out
    folders = [where] if out is not None else sorted(path for path in where.glob("*") if path.is_dir())
    found = [folder for folder in folders if _holds_run(folder, seeds)]
    if not found:
        kind = "a single seed" if seeds == 1 else "several seeds"
        raise CheckpointError(f"{where}: no such run to resume, of {kind}; start one without --resume.")
    return found[-1]


def _holds_run(folder: Path, seeds: int) -> bool:
    pattern = "rounds.jsonl" if seeds == 1 else "seed-*/rounds.jsonl"
    return any(folder.glob(pattern))


def seed_folder(folder: Path, seed: int, seeds: int) -> RunDirectory:
    """A single seed lives in the run's folder itself, several in folders of their own."""
    return RunDirectory(folder if seeds == 1 else folder / f"seed-{seed}")
