"""Everything that the next round depends on, in one safetensors file with a JSON header.

Never pickle: a checkpoint from somebody else cannot run code. The file is replaced atomically, so a
process killed at any moment leaves the previous checkpoint or the new one. A seal over header and tensors
tells a file that was altered or damaged since; there is no older one to fall back to, so it is refused.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from fedsim.contracts import Tensors, Vector
from fedsim.errors import CheckpointError
from fedsim.params import digest as digest_of
from fedsim.run.atomic_files import save_tensors

FORMAT = 2


@dataclass(frozen=True, kw_only=True)
class RunState:
    """A run between two rounds.

    Attributes:
        round: the last finished one; 0 before the first.
        vector: [d], the shared model.
        integers: its integer tensors.
        strategy: the rule's state.
        downlink: what the rule sends along with the next model.
        attack: the adversary's state.
    """

    round: int
    vector: Vector
    integers: Tensors
    strategy: Tensors = field(default_factory=dict)
    downlink: Tensors = field(default_factory=dict)
    attack: Tensors = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A run's state and what belongs to it.

    Attributes:
        state: between two rounds.
        seed: of the run.
        digest: of the experiment; `Experiment.digest`.
        history: bytes of `rounds.jsonl` that belong to the finished rounds.
        memory: private tensors by partition.
        files: names of files with the private tensors of further partitions.
    """

    state: RunState
    seed: int
    digest: str
    history: int
    memory: Mapping[int, Tensors] = field(default_factory=dict)
    files: Mapping[int, str] = field(default_factory=dict)


_GROUPS = ("integers", "strategy", "downlink", "attack")


def save(path: Path, checkpoint: Checkpoint) -> None:
    """Write a checkpoint, atomically."""
    state = checkpoint.state
    tensors = {"vector": state.vector}
    for group in _GROUPS:
        tensors |= {f"{group}/{name}": tensor for name, tensor in getattr(state, group).items()}
    for partition, private in checkpoint.memory.items():
        tensors |= {f"private/{partition}/{name}": tensor for name, tensor in private.items()}
    header = {
        "format": FORMAT,
        "round": state.round,
        "seed": checkpoint.seed,
        "digest": checkpoint.digest,
        "history": checkpoint.history,
        "memory": sorted(checkpoint.memory),
        "files": {str(partition): name for partition, name in checkpoint.files.items()},
        # safetensors sorts by type and name; the order of a mapping is part of a state
        "order": list(tensors),
    }
    text = json.dumps(header)
    save_tensors(path, tensors, {"fedsim": text, "seal": _seal(text, tensors)})


def _seal(header: str, tensors: Mapping[str, Tensor]) -> str:
    return hashlib.sha256(f"{header}\n{digest_of(tensors)}".encode()).hexdigest()


def load(path: Path) -> Checkpoint:
    """Read a checkpoint.

    Raises:
        CheckpointError: no such file, or it is not one of ours, or not as it was written.
    """
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            header: dict[str, Any] = json.loads(metadata["fedsim"])
            stored: dict[str, Tensor] = {name: file.get_tensor(name) for name in header["order"]}
    except FileNotFoundError:
        raise CheckpointError(f"{path}: no checkpoint here to resume from.") from None
    except (SafetensorError, KeyError, ValueError, OSError) as error:
        raise CheckpointError(f"{path}: not a checkpoint of fedsim: {error}") from error
    if header.get("format") != FORMAT:
        raise CheckpointError(
            f"{path}: has format {header.get('format')}, this version reads format {FORMAT}."
        )
    if metadata.get("seal") != _seal(metadata["fedsim"], stored):
        raise CheckpointError(
            f"{path}: was damaged or changed after it was written (its content does not match its digest): "
            "put back a copy, or start anew without --resume."
        )
    try:
        return _checkpoint(header, stored)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(
            f"{path}: not a checkpoint of fedsim: {type(error).__name__}: {error}"
        ) from error


def _checkpoint(header: Mapping[str, Any], stored: Mapping[str, Tensor]) -> Checkpoint:
    groups = {group: _below(stored, f"{group}/") for group in _GROUPS}
    return Checkpoint(
        state=RunState(round=int(header["round"]), vector=stored["vector"], **groups),
        seed=header["seed"],
        digest=header["digest"],
        history=int(header["history"]),
        memory={int(partition): _below(stored, f"private/{partition}/") for partition in header["memory"]},
        files={int(partition): name for partition, name in header["files"].items()},
    )


def _below(stored: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in stored.items() if name.startswith(prefix)}


def require_same(checkpoint: Checkpoint, digest: str, seed: int, path: Path) -> None:
    """Refuse to continue another experiment.

    Raises:
        CheckpointError: the experiment changed in a way that touches the numbers, or the seed is another.
    """
    if checkpoint.seed != seed:
        raise CheckpointError(f"{path}: belongs to seed {checkpoint.seed}, asked to resume seed {seed}.")
    if checkpoint.digest != digest:
        raise CheckpointError(
            f"{path}: belongs to experiment {checkpoint.digest[:12]}, but the file now reads {digest[:12]}: "
            "undo the change (manifest.json has the old values), or start anew without --resume."
        )
