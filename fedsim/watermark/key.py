"""A key whose signs are drawn after everything that they refer to, and the commitment to it.

The sets of nodes come first, the marked features follow from them, and the signs follow from both:
a keyed hash (HMAC-SHA256 under the owner's secret) of the owner, the date, the sets, the features and
the contents of the subgraphs orders the features, and the first half of that order gets +1. Whoever chooses
sets or features to suit a model changes the signs by that; there is no other salt than the secret, and
trying many of those is paid for by the level of the verdict (alpha divided by the number of tries).

The file holds the secret: keep it. What is published, on the date named, is the commitment.
"""

import hashlib
import hmac
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from datetime import date
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from pydantic import TypeAdapter, ValidationError
from torch import Tensor

from fedsim.errors import ConfigError
from fedsim.watermark.marks import marked_features, number_of_marks
from fedsim.watermark.subgraphs import Graph, Subgraphs, as_sets, induced

FORMAT = "fedsim watermark key 1"
SECRET_BYTES = 32


@dataclass(frozen=True, kw_only=True)
class Key:
    """An owner's key.

    Attributes:
        owner: a name, as it shall stand in public.
        date: ISO 8601, of the commitment.
        feature_count: F of the data.
        classes: C of the model.
        seed: of the split into training, validation and test nodes.
        sets: T tuples of n node numbers.
        features: the M marked features, ascending.
        data: SHA-256 of the features and edges of the sets.
        secret: hexadecimal, 32 bytes.
    """

    owner: str
    date: str
    feature_count: int
    classes: int
    seed: int
    sets: tuple[tuple[int, ...], ...]
    features: tuple[int, ...]
    data: str
    secret: str

    @cached_property
    def signs(self) -> Tensor:
        """[M] float64 of -1 and 1: a pure function of the other fields."""
        return derive_signs(bytes.fromhex(self.secret), self.statement(), len(self.features))

    @cached_property
    def nodes(self) -> Tensor:
        """[T, n] int64."""
        return as_sets(self.sets)

    def statement(self) -> dict[str, Any]:
        """All that the signs depend on, besides the secret."""
        content = asdict(self)
        del content["secret"]
        return {"format": FORMAT, **content}

    def commitment(self) -> dict[str, Any]:
        """What to publish: it binds the owner to this key and gives nothing else away."""
        content = canonical({**self.statement(), "secret": self.secret})
        return {
            "format": "fedsim watermark commitment 1",
            "owner": self.owner,
            "date": self.date,
            "sha256": hashlib.sha256(content).hexdigest(),
        }

    def subgraphs(self, graph: Graph) -> Subgraphs:
        """What a suspect is asked about.

        Raises:
            ConfigError: the graph is not the one that the key was made for.
        """
        if graph.x.shape[1] != self.feature_count:
            raise ConfigError(
                f"The key is for {self.feature_count} features, but the data have {graph.x.shape[1]}."
            )
        if int(self.nodes.max()) >= len(graph.x):
            raise ConfigError(
                f"The key names node {int(self.nodes.max())}, but the data have {len(graph.x)} nodes."
            )
        found = induced(graph.x, graph.edge_index, self.nodes)
        if found.sha256() != self.data:
            raise ConfigError("The data differ from those that the key was made for: its sets hold others.")
        return found


def make_key(
    graph: Graph,
    sets: Tensor,
    *,
    owner: str,
    date: str,
    secret: str,
    seed: int = 0,
    marks: int | None = None,
) -> Key:
    """The key for some sets.

    Args:
        graph: the owner's.
        sets: [T, n] node numbers.
        owner: a name.
        date: ISO 8601.
        secret: hexadecimal, 32 bytes.
        seed: of the split.
        marks: M; None: `number_of_marks`, but no more than the features in use.

    Raises:
        ConfigError: name, date or secret cannot be used, or there are fewer features than marks.
    """
    chosen = induced(graph.x, graph.edge_index, sets)
    if marks is None:
        in_use = int((chosen.x != 0).flatten(0, 1).any(dim=0).sum())
        marks = min(in_use, number_of_marks(graph.x.shape[1], len(sets)))
    key = Key(
        owner=owner,
        date=date,
        feature_count=graph.x.shape[1],
        classes=graph.classes,
        seed=seed,
        sets=tuple(tuple(row) for row in sets.tolist()),
        features=tuple(marked_features(chosen.x, marks).tolist()),
        data=chosen.sha256(),
        secret=secret,
    )
    check_key(key)
    return key


def derive_signs(secret: bytes, statement: Mapping[str, Any], marks: int) -> Tensor:
    """[marks] float64: +1 for the half of the marks whose keyed hash is smallest, else -1."""
    message = hashlib.sha256(canonical(statement)).digest()
    hashes = [hmac.digest(secret, message + place.to_bytes(4, "big"), "sha256") for place in range(marks)]
    signs = torch.full((marks,), -1.0, dtype=torch.float64)
    signs[sorted(range(marks), key=hashes.__getitem__)[: marks // 2]] = 1.0
    return signs


def canonical(content: Mapping[str, Any]) -> bytes:
    """JSON with sorted names and no spaces."""
    return json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def check_key(key: Key) -> None:
    """Refuse a key that means nothing.

    Raises:
        ConfigError: what is wrong with it.
    """
    if not key.owner.strip() or not key.owner.isprintable():
        raise ConfigError(f"owner must be a name on one line, found {key.owner!r}.")
    try:
        date.fromisoformat(key.date)
    except ValueError:
        raise ConfigError(f"date must be like 2026-01-31, found {key.date!r}.") from None
    try:
        secret = bytes.fromhex(key.secret)
    except ValueError:
        secret = b""
    if len(secret) != SECRET_BYTES:
        raise ConfigError(f"secret must be {SECRET_BYTES} bytes in hexadecimal.")
    if len({len(row) for row in key.sets}) != 1 or len(key.sets[0]) < 2:
        raise ConfigError("sets must be one or more sets of as many nodes, at least 2.")
    if len(set(key.nodes.flatten().tolist())) != key.nodes.numel() or int(key.nodes.min()) < 0:
        raise ConfigError("sets must be disjoint sets of node numbers.")
    if len(key.features) < 2 or list(key.features) != sorted(set(key.features)):
        raise ConfigError("features must be at least 2 ascending feature numbers.")
    if not 0 <= key.features[0] <= key.features[-1] < key.feature_count:
        raise ConfigError(f"features must be below feature_count = {key.feature_count}.")


def key_text(key: Key) -> str:
    """The file: everything by name, with the signs for the reader's eye."""
    signs = "".join("+" if sign > 0 else "-" for sign in key.signs.tolist())
    content = {**key.statement(), "signs": signs, "secret": key.secret}
    lines = ",\n".join(
        f"  {json.dumps(name)}: {json.dumps(value, ensure_ascii=False)}" for name, value in content.items()
    )
    return "{\n" + lines + "\n}\n"


def read_key(path: Path) -> Key:
    """The key in a file.

    Raises:
        ConfigError: it cannot be read, is not a key, or its signs are not those that follow from the rest.
    """
    content = read_object(path, "a key")
    signs = content.pop("signs", None)
    if content.pop("format", None) != FORMAT:
        raise ConfigError(f"{path}: is not a key of this program (its format is not {FORMAT!r}).")
    unknown = sorted(set(content) - {field.name for field in fields(Key)})
    if unknown:
        raise ConfigError(f"{path}: unknown name {unknown[0]!r}.")
    try:
        key = TypeAdapter(Key).validate_python(content)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        raise ConfigError(f"{path}: {place}: {first['msg']}.") from None
    try:
        check_key(key)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None
    if signs != "".join("+" if sign > 0 else "-" for sign in key.signs.tolist()):
        raise ConfigError(f"{path}: the signs do not follow from the secret, the sets and the features.")
    return key


def read_object(path: Path, what: str) -> dict[str, Any]:
    """A JSON object from a file.

    Raises:
        ConfigError: it cannot be read, or holds something else.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}.") from None
    except ValueError:
        raise ConfigError(f"{path}: is not {what}: not JSON.") from None
    if not isinstance(content, dict):
        raise ConfigError(f"{path}: is not {what}: not a JSON object.")
    return content


def check_commitment(key: Key, published: Mapping[str, Any]) -> None:
    """Refuse a key that is not the one committed to.

    Raises:
        ConfigError: owner, date or hash differ.
    """
    for name, value in key.commitment().items():
        if published.get(name) != value:
            raise ConfigError(f"The key does not open the commitment: {name} differs.")


def own_secret(path: Path, partition: int) -> str:
    """The secret of one of a federation's owners, in hexadecimal: a hash of the file's and its number.

    Raises:
        ConfigError: the file cannot be read, or holds something else.
    """
    try:
        whole = bytes.fromhex(path.read_text(encoding="utf-8").strip())
    except (OSError, ValueError) as error:
        raise ConfigError(f"client.secret_file: {path}: {error}.") from None
    if len(whole) != SECRET_BYTES:
        raise ConfigError(f"client.secret_file: {path}: wanted {SECRET_BYTES} bytes in hexadecimal.")
    return hashlib.sha256(whole + partition.to_bytes(4, "big")).hexdigest()
